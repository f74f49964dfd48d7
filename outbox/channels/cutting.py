"""An end to every conversation: a peer that drips byte by byte never runs into the timeout of a single read."""

import contextlib
import socket
import threading
from types import TracebackType


class Cutter:
    """Within the block, ends the connection it watches as soon as `seconds` have passed: who reads from it or writes
    to it gets an error at once."""

    def __init__(self, seconds: float) -> None:
        self._timer = threading.Timer(max(0.0, seconds), self._cut)
        self._timer.daemon = True
        self._line: socket.socket | None = None
        self._is_over = False

    def __enter__(self) -> "Cutter":
        self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._timer.cancel()
        self._forget()

    def watch(self, connected: socket.socket) -> None:
        """Watch this connection. TLS may be begun on it later."""
        self._forget()
        # A descriptor of our own: TLS takes the socket's away, and whoever closes it must not close another one's.
        self._line = socket.fromfd(connected.fileno(), connected.family, connected.type)
        if self._is_over:
            self._cut()

    def _cut(self) -> None:
        self._is_over = True
        line = self._line
        if line is not None:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def _forget(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
