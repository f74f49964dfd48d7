"""A circuit breaker: while a receiver is not there at all, one message at a time asks for it, and rarely."""

import random
import time
from dataclasses import dataclass, field

FAILURES_TO_OPEN = 5
FIRST_PAUSE = 2.0
LONGEST_PAUSE = 120.0


@dataclass(slots=True)
class _Circuit:
    failures: int = 0
    pause: float = field(default_factory=lambda: FIRST_PAUSE)
    next_try: float = 0.0


class Breaker:
    """Counts, per host, attempts in a row that found nobody there, and says who may try again when.

    Opens after five; then one message may try after 2 s, 4 s, … up to two minutes, with jitter. Any answer at all
    closes it. It belongs to one drainer: others find out for themselves.
    """

    def __init__(self) -> None:
        self._circuits: dict[str, _Circuit] = {}

    def record(self, host: str, *, unreachable: bool) -> bool:
        """Take note of one attempt; True if that opened or closed the circuit."""
        was_open = self.is_open(host)
        if not unreachable:
            self._circuits.pop(host, None)
            return was_open
        circuit = self._circuits.setdefault(host, _Circuit())
        circuit.failures += 1
        if circuit.failures >= FAILURES_TO_OPEN:
            self._wait(circuit)
        return self.is_open(host) and not was_open

    def is_open(self, host: str) -> bool:
        """Whether the host is taken to be away."""
        circuit = self._circuits.get(host)
        return circuit is not None and circuit.failures >= FAILURES_TO_OPEN

    def pause(self, host: str) -> float:
        """Seconds until the next message may try the host; 0 for now."""
        circuit = self._circuits.get(host)
        return 0.0 if circuit is None else max(0.0, circuit.next_try - time.monotonic())

    def may_try(self, host: str) -> bool:
        """Whether this message may try the host. When it is away, a yes to one is a no to the next."""
        if not self.is_open(host):
            return True
        if self.pause(host) > 0:
            return False
        # Here, and not for each failure: several messages may have been on their way when the first one failed.
        circuit = self._circuits[host]
        circuit.pause = min(LONGEST_PAUSE, circuit.pause * 2)
        self._wait(circuit)
        return True

    def open_hosts(self) -> list[str]:
        """The hosts that are taken to be away."""
        return [host for host in self._circuits if self.is_open(host)]

    @staticmethod
    def _wait(circuit: _Circuit) -> None:
        jittered = circuit.pause * random.uniform(0.75, 1.25)  # noqa: S311  # spreads load, hides nothing
        circuit.next_try = time.monotonic() + jittered
