"""One SMTP conversation at a time, that knows at every moment whether the server can have the message.

A server has a message once it has read the final dot of its text; the client knows only when the reply is in
(RFC 1047 calls this the second leading cause of duplicate mail). The exceptions of smtplib do not tell the two sides
of the dot apart: a server that hangs up at MAIL and one that hangs up after the dot look the same. So the steps of the
conversation are taken one by one here:

    connect, EHLO, TLS, login   fails: the server is not reachable, nothing was handed over
    MAIL, RCPT, DATA            refused: as the server says; lost: nothing was handed over. A recipient refused for
                                good is left out, and one refused for now refuses the message for now
    530, 534, 535, 538, 454     at whatever step: the server takes no mail from us as we are set up, or log in now; that
                                says nothing about this message, so it counts as a server that is not reachable
    the text                    lost, or the server speaks before the dot: nothing was handed over
    the final dot               from here on the server may have it
    the reply                   2yz accepted, 4yz refused for now, 5yz refused for good; anything else, or none: unknown
    QUIT                        whatever happens: the reply stands
"""

import contextlib
import re
import smtplib
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from typing import Any

from django.core.mail.backends.smtp import EmailBackend
from django.core.mail.utils import DNS_NAME

from outbox.channels import lookups
from outbox.channels.base import Answer, Deadline, Outcome
from outbox.channels.cutting import Cutter
from outbox.errors import DeadlinePassed

# Where the project sets no timeout, a server that is silent is waited for so long and no longer.
DEFAULT_TIMEOUT_SECONDS = 60.0

# RFC 4954 6: authentication required, mechanism too weak, credentials invalid, encryption required; 454: temporarily.
_NOT_LET_IN = {530, 534, 535, 538, 454}
_GOING_AWAY = 421  # RFC 5321 3.8: the server ends the connection, whatever the command was
_OUT_OF_SEQUENCE = 503

# For SO_LINGER: whether the kernel goes on delivering what was written to a connection that is closed.
_FORGET_THE_REST, _DELIVER_THE_REST = struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)

_LINE_END = re.compile(rb"\r\n|\r|\n")
_LEADING_DOT = re.compile(rb"^\.", re.MULTILINE)


class SmtpConversation:
    """Hands mail over through the connection of Django's SMTP backend, which is kept open for the next one."""

    def __init__(self, backend: EmailBackend) -> None:
        self._backend = backend
        backend.fail_silently = False
        self._timeout = backend.timeout = backend.timeout or DEFAULT_TIMEOUT_SECONDS
        self._cutter = Cutter(0)
        # The backend connects, begins TLS and logs in with one call: its socket must be known before the greeting.
        made = {"connection_class": _connected_by(self._connect, backend.connection_class)}
        backend.__class__ = type(type(backend).__name__, (type(backend),), made)

    def hand_over(self, mail_from: str, rcpt_tos: Sequence[str], data: bytes, deadline: Deadline) -> Answer:
        """Hand one message over. Raises DeadlinePassed when the time ran out before the final dot; it was not sent."""
        reused = self._backend.connection is not None
        try:
            answer = self._converse(mail_from, rcpt_tos, data, deadline)
            if answer is None and reused:
                # A server may close an idle connection whenever it likes; that says nothing about this message.
                answer = self._converse(mail_from, rcpt_tos, data, deadline)
        except DeadlinePassed:
            self._abandon()
            raise
        return answer or Answer(Outcome.NOT_HANDED_OVER, "the server closed the connection at MAIL")

    def close(self) -> None:
        """Say goodbye, and do not care whether the server does. Never raises."""
        smtp: Any = self._backend.connection
        if smtp is not None:
            with contextlib.suppress(Exception):
                smtp.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DELIVER_THE_REST)
                smtp.sock.settimeout(min(self._timeout, 2.0))
                smtp.quit()
        self._abandon()

    def _converse(self, mail_from: str, rcpt_tos: Sequence[str], data: bytes, deadline: Deadline) -> Answer | None:
        """One conversation; None when the connection turned out to be gone at its first word."""
        deadline.check()
        is_reused = self._backend.connection is not None
        with contextlib.ExitStack() as until_then:
            try:
                self._cutter = until_then.enter_context(Cutter(deadline.remaining()))
                smtp = self._open(deadline)
            except Exception as error:  # whatever it is (a password that is not ASCII): no word of the message was said
                self._abandon()
                answered = isinstance(error, smtplib.SMTPResponseException)
                nobody = f"no connection to {self._backend.host}:{self._backend.port}"
                what = "the server did not let us in" if answered else nobody
                return Answer(Outcome.NOT_HANDED_OVER, f"{what}: {_said(error)}", unreachable=True)
            return self._talk(smtp, mail_from, rcpt_tos, data, deadline, is_reused)

    def _talk(
        self, smtp: Any, mail_from: str, rcpt_tos: Sequence[str], data: bytes, deadline: Deadline, is_reused: bool
    ) -> Answer | None:
        """The conversation on an open connection; None when that turned out to be gone at its first word."""
        first_word = True
        try:
            if is_reused and _has_spoken(smtp):
                # Whatever it is, it would be taken for the answer to our next word.
                self._abandon()
                return None
            self._bound(smtp, deadline)
            code, reply = smtp.mail(mail_from)
            if is_reused and code == _OUT_OF_SEQUENCE:
                self._abandon()  # it has not forgotten the message before, which says nothing about this one
                return None
            if code == _GOING_AWAY or code == -1:
                self._abandon()
                if is_reused:
                    return None
                words = _words(code, reply)
                return Answer(Outcome.NOT_HANDED_OVER, f"the server is busy or going away: {words}", unreachable=True)
            first_word = False
            if code // 100 != 2:
                return self._refused(smtp, code, "MAIL", reply)
            refused = {}
            for rcpt_to in rcpt_tos:
                self._bound(smtp, deadline)
                code, reply = smtp.rcpt(rcpt_to)
                if code // 100 == 5 and code not in _NOT_LET_IN:
                    refused[rcpt_to] = _words(code, reply)
                elif code // 100 != 2:
                    # Sent to the others now, it would never reach this one; and sent again, it would reach them twice.
                    return self._refused(smtp, code, f"RCPT {rcpt_to}", reply)
            if len(refused) == len(rcpt_tos):
                return self._refused(smtp, 550, "RCPT", "; ".join(refused.values()))
            self._bound(smtp, deadline)
            code, reply = smtp.docmd("DATA")
            if code != 354:
                return self._refused(smtp, code, "DATA", reply)
        except (OSError, smtplib.SMTPException) as error:
            self._abandon()
            return None if first_word else Answer(Outcome.NOT_HANDED_OVER, f"before the final dot: {_said(error)}")
        self._bound(smtp, deadline)
        try:
            smtp.sock.sendall(_on_the_wire(data))
            may_end = not _has_spoken(smtp)
        except OSError as error:
            return self._end_early(smtp, _said(error), deadline)
        return self._finish(smtp, refused, deadline) if may_end else self._end_early(smtp, "", deadline)

    def _end_early(self, smtp: Any, failure: str, deadline: Deadline) -> Answer:
        """The answer when the dot cannot or must not follow: what the server said before it is not the reply to it."""
        try:
            if _has_spoken(smtp):
                self._bound(smtp, deadline)
                code, reply = smtp.getreply()
                if code // 100 in (4, 5):
                    self._abandon()  # in the middle of a text even RSET would be part of it
                    return self._refused(smtp, code, "the text", reply)
                failure = failure or f"the server said {_words(code, reply)}"
        except (OSError, smtplib.SMTPException) as error:
            failure = failure or _said(error)
        self._abandon()
        return Answer(Outcome.NOT_HANDED_OVER, f"before the final dot: {failure}")

    def _finish(self, smtp: Any, refused: dict[str, str], deadline: Deadline) -> Answer:
        """The final dot and its reply: the point of no return."""
        self._bound(smtp, deadline)
        try:
            deadline.check()
            smtp.sock.sendall(b".\r\n")
        except ConnectionError as error:
            # The kernel refused the dot: the connection was reset while the text was on its way.
            return self._end_early(smtp, _said(error), deadline)
        except OSError as error:
            self._abandon()
            return Answer(Outcome.UNKNOWN, f"while sending the final dot: {_said(error)}")
        try:
            code, reply = smtp.getreply()
        except (OSError, smtplib.SMTPException) as error:
            self._abandon()
            return Answer(Outcome.UNKNOWN, f"after the final dot: {_said(error)}")
        words = _words(code, reply)
        if code // 100 == 2:
            return Answer(Outcome.ACCEPTED, words, provider_id=words, refused=refused)
        if code // 100 in (4, 5):
            return self._refused(smtp, code, "the final dot", reply)
        self._abandon()
        return Answer(Outcome.UNKNOWN, f"after the final dot the server said {words}")

    def _open(self, deadline: Deadline) -> Any:
        if self._backend.connection is None:
            # The backend says who we are, and asks the resolver for it once per process.
            lookups.bounded(("own name", "our own name"), DNS_NAME.get_fqdn, min(self._timeout, deadline.remaining()))
            self._backend.timeout = max(0.01, min(self._timeout, deadline.remaining()))
            self._backend.open()
        smtp: Any = self._backend.connection
        self._bound(smtp, deadline)
        self._cutter.watch(smtp.sock)
        # The text and its final dot are two writes: with Nagle's algorithm the dot would wait for the text's delayed
        # acknowledgement, 40 ms per mail.
        smtp.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # What the server has not taken when we give up, or are killed, it shall not get from our kernel minutes later,
        # when a person may have sent the message again.
        smtp.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _FORGET_THE_REST)
        smtp.ehlo_or_helo_if_needed()
        deadline.check()
        return smtp

    def _connect(self, to_one: Callable[..., socket.socket], host: str, port: int, timeout: float) -> socket.socket:
        """A connection to one of the host's addresses, which together are tried for no longer than the claim lasts."""
        failure = OSError(f"{host} has no address")
        ends_at = Deadline.after(timeout)
        for *_, address in lookups.addresses(host, port, timeout):
            try:
                connected = to_one(*address[:2], max(0.01, ends_at.remaining()))
            except OSError as error:
                failure = error
            else:
                connected.settimeout(timeout)
                self._cutter.watch(connected)
                return connected
        raise failure

    def _bound(self, smtp: Any, deadline: Deadline) -> None:
        """No step waits longer than the mail timeout, nor than the claim lasts."""
        deadline.check()
        if smtp.sock is None:
            raise smtplib.SMTPServerDisconnected("the connection is closed")
        smtp.sock.settimeout(max(0.01, min(self._timeout, deadline.remaining())))

    def _refused(self, smtp: Any, code: int, step: str, reply: bytes | str) -> Answer:
        words = f"{_words(code, reply)} (at {step})" if isinstance(reply, bytes) else reply
        permanent = code // 100 == 5
        try:
            if code in (_GOING_AWAY, *_NOT_LET_IN) or code // 100 not in (4, 5) or smtp.rset()[0] != 250:
                self._abandon()
        except (OSError, smtplib.SMTPException):
            self._abandon()
        if code // 100 not in (4, 5):
            return Answer(Outcome.NOT_HANDED_OVER, f"unexpected answer: {words}")
        if code in _NOT_LET_IN:
            return Answer(Outcome.NOT_HANDED_OVER, f"the server did not let us in: {words}", unreachable=True)
        return Answer(Outcome.REFUSED_PERMANENTLY if permanent else Outcome.REFUSED_TEMPORARILY, words)

    def _abandon(self) -> None:
        """Drop the connection without a word: in the middle of a text even QUIT would be part of it."""
        for name in ("connection", "_partial_connection"):
            connection = getattr(self._backend, name, None)
            if connection is not None:
                with contextlib.suppress(Exception):
                    connection.close()
                setattr(self._backend, name, None)


def _connected_by(connect: Callable[..., socket.socket], smtp_class: type[smtplib.SMTP]) -> type[smtplib.SMTP]:
    """The same class, whose connections are made by `connect`, given what makes one to a single address."""

    class Connected(smtplib.SMTP):
        def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
            return connect(super()._get_socket, host, port, timeout)  # type: ignore[misc]  # unknown to typeshed

    # Behind the given class, so that its TLS is on top of our connection.
    bases = (Connected,) if smtp_class is smtplib.SMTP else (smtp_class, Connected)
    return type(smtp_class.__name__, bases, {})


def _has_spoken(smtp: Any) -> bool:
    """Whether there is something of the server's that nobody has read, or it closed the connection. Does not wait."""
    smtp.sock.settimeout(0)
    try:
        if smtp.file.peek(1) or isinstance(smtp.sock, ssl.SSLSocket):
            return True
        smtp.sock.recv(1, socket.MSG_PEEK)  # an empty peek is an end, or silence; TLS raises at silence
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    return True


def _on_the_wire(data: bytes) -> bytes:
    """With CRLF line ends, leading dots doubled (RFC 5321 4.5.2), and a line end before the final dot."""
    data = _LEADING_DOT.sub(b"..", _LINE_END.sub(b"\r\n", data))
    return data if data.endswith(b"\r\n") else data + b"\r\n"


def _words(code: int, reply: bytes | str) -> str:
    return f"{code} {reply.decode('utf-8', 'replace') if isinstance(reply, bytes) else reply}".strip()


def _said(error: BaseException) -> str:
    if isinstance(error, smtplib.SMTPResponseException):
        reply = error.smtp_error
        return _words(error.smtp_code, reply if isinstance(reply, bytes | str) else str(reply))
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
