"""The clock that local deadlines are counted on."""

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    """Return seconds on a clock that never steps back and goes on while the machine is suspended.

    CLOCK_MONOTONIC stops during a suspend on Linux, so a lease would look fresh after a pause of hours.
    """
    return time.clock_gettime(_CLOCK)
