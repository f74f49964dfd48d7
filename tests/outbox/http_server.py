"""An HTTP receiver that misbehaves on demand, and records every request it read to its end before it answers."""

import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    body: bytes


class _Handler(BaseHTTPRequestHandler):
    server: "Receiver"

    def do_POST(self) -> None:
        server = self.server
        body = self.rfile.read(int(self.headers["content-length"]))
        server.received.append(Request(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        if server.mode == "drop":
            self.close_connection = True
            return
        if server.mode == "drip":
            for byte in b"HTTP/1.1 200 OK\r\n\r\n":
                self.wfile.write(bytes([byte]))
                time.sleep(0.2)
            return
        if server.mode == "drip_text":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
            for _ in range(400):
                self.wfile.write(b".")
                time.sleep(0.2)
            return
        if server.mode == "negative_chunk":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nwords")
            return
        self.send_response(server.status)
        for name, value in server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(server.text)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


class Receiver(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.mode, self.status, self.text = "answer", 204, b""
        self.headers: dict[str, str] = {}
        self.received: list[Request] = []
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook?x=1"

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gives up is what the tests are about."""
