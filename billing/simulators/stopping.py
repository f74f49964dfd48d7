"""How a simulator ends: SIGTERM and SIGINT (Ctrl-C) stop it at once, with exit code 0."""

import signal
import threading
from types import FrameType


def wait_for_stop_signal() -> None:
    """Return when this process was told to stop; call it from the main thread."""
    told = threading.Event()

    def tell(number: int, frame: FrameType | None) -> None:
        told.set()

    previous = {number: signal.signal(number, tell) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        told.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
