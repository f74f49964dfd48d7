"""An SMTP server that misbehaves on demand, and records every mail whose final dot it read before it answers.

How it behaves is `server.mode`, or the local part of the first recipient where that names a mode, so that one mail of
many can be the bad one.
"""

import re
import socket
import socketserver
import ssl
import threading
import time
from dataclasses import dataclass
from typing import Any

MODES = {
    "accept",
    "refuse_connection",  # 554 as greeting
    "busy_connection",  # 421 as greeting
    "drop_at_connect",
    "drip_at_connect",  # one byte of the greeting every `server.delay`, and no end
    "drip_at_ehlo",  # and of the reply to EHLO
    "drop_at_mail",
    "busy_at_mail",  # 421 at MAIL
    "code_at_mail",  # `server.code` at MAIL; it is also the answer to AUTH
    "code_at_rcpt",
    "slow_at_data",  # 354 comes after `server.delay`
    "stall_in_text",  # after 354, reads on only when `server.goes_on` is set
    "drop_at_data",  # after 354, before reading
    "drop_before_dot",  # after reading some of the text
    "drop_after_dot",
    "hang_after_dot",
    "drip_after_dot",  # one line of the reply every `server.delay`, and no end
    "nonsense_after_dot",
    "tempfail",  # 451 after the dot
    "permfail",  # 554 after the dot
    "tempfail_rcpt",
    "permfail_rcpt",
    "refuse_one",  # 550 for the recipients called "refused", 450 for those called "busy"
    "early_accept",  # 250 right behind the 354, and 554 after the dot
    "early_refuse",  # 552 while the text comes, and no reading on
    "answer_twice",  # 250 two times after the dot
    "half_reset",  # RSET is answered 451 and resets nothing: the next MAIL on this connection gets 503
    "weird_reply",  # 250 with bytes no text column takes
    "drop_at_quit",
    "drop_when_idle",  # after every accepted mail
    "slow",  # answers every mail after `server.delay`
    "held",  # answers every mail only when `server.goes_on` is set
}


@dataclass(frozen=True)
class Envelope:
    mail_from: str
    rcpt_tos: tuple[str, ...]
    data: bytes

    @property
    def message_id(self) -> str:
        match = re.search(rb"^Message-ID: (.*)\r\n", self.data, re.MULTILINE)
        assert match
        return match[1].decode()


class _Hangup(Exception):
    pass


class _Conversation(socketserver.StreamRequestHandler):
    server: "MailServer"

    def handle(self) -> None:
        self.server.connections.append(self.request)
        try:
            self._converse()
        except (_Hangup, OSError, ValueError):
            return

    def _say(self, reply: bytes) -> None:
        self.wfile.write(reply + b"\r\n")

    def _drip(self) -> None:
        while True:
            self.wfile.write(b"2")
            time.sleep(self.server.delay)

    def _hang_up(self) -> None:
        self.request.shutdown(socket.SHUT_RDWR)
        raise _Hangup

    def _converse(self) -> None:
        mode = self.server.mode
        if mode == "drop_at_connect":
            self._hang_up()
        if mode == "drip_at_connect":
            self._drip()
        greetings = {"refuse_connection": b"554 go away", "busy_connection": b"421 too busy"}
        self._say(greetings.get(mode, b"220 test ESMTP"))
        mail_from = ""
        rcpt_tos: list[str] = []
        in_transaction = False
        while line := self.rfile.readline():
            verb, _, rest = line.strip().partition(b" ")
            address = re.search(rb"<(.*)>", rest)
            match verb.upper():
                case b"EHLO" | b"HELO":
                    if self.server.mode == "drip_at_ehlo":
                        self._drip()
                    lines = [b"test", *self.server.extensions]
                    for line in lines[:-1]:
                        self._say(b"250-" + line)
                    self._say(b"250 " + lines[-1])
                case b"AUTH":
                    self._say(b"%d not with these credentials" % self.server.code)
                case b"MAIL":
                    if self.server.mode == "code_at_mail":
                        self._say(b"%d not let in" % self.server.code)
                        continue
                    if self.server.mode == "drop_at_mail":
                        self._hang_up()
                    if self.server.mode == "busy_at_mail":
                        self._say(b"421 too many messages")
                        self._hang_up()
                    if in_transaction:
                        self._say(b"503 nested MAIL command")
                        continue
                    assert address
                    mail_from, rcpt_tos = address[1].decode(), []
                    in_transaction = True
                    self._say(b"250 ok")
                case b"RCPT":
                    assert address
                    rcpt_to = address[1].decode()
                    self._say(self._on_rcpt(rcpt_to, rcpt_tos))
                case b"DATA":
                    self._on_data(mail_from, tuple(rcpt_tos))
                    in_transaction = False
                case b"RSET":
                    in_transaction = self.server.mode == "half_reset"
                    self._say(b"451 not now" if in_transaction else b"250 ok")
                case b"NOOP":
                    self._say(b"250 ok")
                case b"QUIT":
                    if self.server.mode == "drop_at_quit":
                        self._hang_up()
                    self._say(b"221 bye")
                    return
                case _:
                    self._say(b"500 what")

    def _mode(self, rcpt_tos: tuple[str, ...] | list[str]) -> str:
        local_part = rcpt_tos[0].partition("@")[0] if rcpt_tos else ""
        return local_part if local_part in MODES else self.server.mode

    def _on_rcpt(self, rcpt_to: str, rcpt_tos: list[str]) -> bytes:
        mode = self._mode([*rcpt_tos, rcpt_to])
        if mode == "code_at_rcpt":
            return b"%d not let in" % self.server.code
        if mode == "tempfail_rcpt":
            return b"450 mailbox busy"
        if mode == "permfail_rcpt" or rcpt_to.startswith("refused"):
            return b"550 no such user"
        if rcpt_to.startswith("busy"):
            return b"450 greylisted"
        rcpt_tos.append(rcpt_to)
        return b"250 ok"

    def _on_data(self, mail_from: str, rcpt_tos: tuple[str, ...]) -> None:
        mode = self._mode(rcpt_tos)
        if mode == "slow_at_data":
            time.sleep(self.server.delay)
        self._say(b"354 go on\r\n250 early" if mode == "early_accept" else b"354 go on")
        if mode == "stall_in_text":
            self.server.goes_on.wait(20)
        if mode == "drop_at_data":
            self._hang_up()
        if mode == "early_refuse":
            self.rfile.readline()
            self._say(b"552 too big")
            self._hang_up()
        lines = []
        while (line := self.rfile.readline()) != b".\r\n":
            if not line or mode == "drop_before_dot":
                self._hang_up()
            lines.append(line[1:] if line.startswith(b".") else line)
        if mode in ("tempfail", "permfail", "early_accept"):
            self._say(b"451 try later" if mode == "tempfail" else b"554 5.7.1 spam")
            return
        self.server.received.append(Envelope(mail_from, rcpt_tos, b"".join(lines)))
        if mode == "drop_after_dot":
            self._hang_up()
        if mode == "hang_after_dot":
            self.rfile.readline()
            self._hang_up()
        while mode == "drip_after_dot":
            self._say(b"250-wait")
            time.sleep(self.server.delay)
        if mode == "slow":
            time.sleep(self.server.delay)
        if mode == "held":
            self.server.goes_on.wait(60)
        replies = {
            "nonsense_after_dot": b"hello?",
            "weird_reply": b"250 \0\xff\xfe queued",
            "answer_twice": b"250 queued\r\n250 queued",
        }
        self._say(replies.get(mode, b"250 queued as %d" % len(self.server.received)))
        if mode == "drop_when_idle":
            self._hang_up()


class MailServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, mode: str = "accept", tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Conversation)
        self.mode = mode
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.delay = 0.2
        self.goes_on = threading.Event()
        self.code = 535
        self.extensions: list[bytes] = []
        self.received: list[Envelope] = []
        self.connections: list[Any] = []
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        for connection in self.connections:
            connection.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that dies is what the tests are about."""
