"""A TCP proxy that loses replies, goes silent, or cuts the line."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """Forwards to `target_port`; what goes wrong is switched on and off while it runs."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        #: Replies still to be swallowed; the request reaches the server, the connection is closed instead of the reply.
        self.replies_to_lose = 0
        #: Requests still to be swallowed; the connection is closed instead of forwarding them.
        self.requests_to_lose = 0
        self.silent = False
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Close every connection that is open now."""
        for one in list(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.target_port), timeout=5)
                except OSError:
                    client.close()
                    continue
                server.settimeout(None)
                self._open |= {client, server}
                for source, sink, replies in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._forward, args=(source, sink, replies), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, replies: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if self.silent:
                    continue
                if replies and self.replies_to_lose:
                    self.replies_to_lose -= 1
                    break
                if not replies and self.requests_to_lose:
                    self.requests_to_lose -= 1
                    break
                sink.sendall(data)
        for one in (source, sink):
            self._open.discard(one)
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@contextmanager
def proxy_to(port: int) -> Iterator[Proxy]:
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
