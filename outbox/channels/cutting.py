"""An end to every conversation: a peer that drips byte by byte never runs into the timeout of a single read."""

import contextlib
import math
import socket
import threading
import time
from types import TracebackType


class Cutter:
    """Within the block, ends the connection it watches as soon as `seconds` have passed: who reads from it or writes
    to it gets an error at once."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._line: socket.socket | None = None
        self._is_over = False

    def __enter__(self) -> "Cutter":
        _alarm.set(self, time.monotonic() + self._seconds)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _alarm.clear(self)
        self._forget()

    def watch(self, connected: socket.socket) -> None:
        """Watch this connection. TLS may be begun on it later."""
        self._forget()
        # A descriptor of our own: TLS takes the socket's away, and whoever closes it must not close another one's.
        self._line = socket.fromfd(connected.fileno(), connected.family, connected.type)
        if self._is_over:
            self.cut()

    def cut(self) -> None:
        """End it now, and whatever is watched later."""
        self._is_over = True
        line = self._line
        if line is not None:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def _forget(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


class _Alarm:
    """One thread for all cutters, since starting one for each mail took ten times as long as telling this one. It is
    woken only when an end comes nearer, and ends when it wakes and nothing is left."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ends: dict[Cutter, float] = {}
        self._thread: threading.Thread | None = None
        self._wakes_at = math.inf

    def set(self, cutter: Cutter, at: float) -> None:
        with self._changed:
            self._ends[cutter] = at
            if self._thread is None or not self._thread.is_alive():  # a fork leaves it behind
                self._thread = threading.Thread(target=self._run, name="cutter", daemon=True)
                self._thread.start()
            elif at < self._wakes_at:
                self._changed.notify()

    def clear(self, cutter: Cutter) -> None:
        with self._changed:
            self._ends.pop(cutter, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                over = [cutter for cutter, at in self._ends.items() if at <= now]
                for cutter in over:
                    del self._ends[cutter]
                if not over and not self._ends:
                    self._thread = None
                    return
                if not over:
                    self._wakes_at = min(self._ends.values())
                    self._changed.wait(self._wakes_at - now)
            for cutter in over:
                cutter.cut()


_alarm = _Alarm()
