"""An SMTP server that records every envelope it took over, and misbehaves as told.

An envelope is recorded, on disk, when its final dot has arrived and before anything is answered: that is the moment
from which the mail is the server's, whatever the sender then hears (RFC 1047). So the record, not the senders'
opinion, says how often a mail was sent.
"""

import asyncio
import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email import message_from_bytes
from enum import StrEnum
from pathlib import Path

from aiosmtpd.smtp import SMTP, Envelope, Session


class Mode(StrEnum):
    """What happens to one mail transaction."""

    ACCEPT = "accept"
    DROP_AT_MAIL = "drop_at_mail"
    """The connection breaks before the server has the mail (at RCPT, when set for a recipient)."""
    DROP_AFTER_DOT = "drop_after_dot"
    """The server has the mail, and the connection breaks before the answer."""
    HANG_AFTER_DOT = "hang_after_dot"
    """The server has the mail, and never answers."""
    TEMPFAIL = "tempfail"
    PERMFAIL = "permfail"
    DROP_AT_QUIT = "drop_at_quit"
    """The mail is accepted with 250; the connection breaks at QUIT."""
    REFUSE_ONE = "refuse_one"
    """The first recipient of the envelope is refused with 550, the others are accepted."""


ANSWERED = frozenset({Mode.ACCEPT, Mode.DROP_AT_QUIT, Mode.REFUSE_ONE})


class Script:
    """Which mode the next mail transaction meets: the n-th gets the n-th mode, the last one stays."""

    def __init__(self, modes: Sequence[Mode], by_recipient: Mapping[str, Sequence[Mode]] | None = None) -> None:
        self._modes = modes
        self._by_recipient = by_recipient or {}
        self._seen: Counter[str] = Counter()

    def next_transaction(self) -> Mode:
        return self._next("", self._modes)

    def next_for(self, recipient: str) -> Mode | None:
        """Return the mode set for this recipient's next mail, or None where nothing is set for it."""
        modes = self._by_recipient.get(recipient)
        return self._next(recipient, modes) if modes else None

    def _next(self, key: str, modes: Sequence[Mode]) -> Mode:
        mode = modes[min(self._seen[key], len(modes) - 1)]
        self._seen[key] += 1
        return mode


class Record:
    """The file of envelopes taken over, one JSON object per line, on disk when `append` returns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def append(self, envelope: Envelope, answered: bool) -> None:
        content = envelope.original_content or b""
        headers = message_from_bytes(content)
        entry = {
            "time": datetime.now(UTC).isoformat(),
            "mail_from": envelope.mail_from,
            "rcpt_tos": envelope.rcpt_tos,
            "message_id": headers["Message-ID"],
            "subject": headers["Subject"],
            "digest": hashlib.sha256(content).hexdigest(),
            "answered": answered,
        }
        self._file.write(json.dumps(entry).encode() + b"\n")
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class Handler:
    """aiosmtpd's hooks for one connection."""

    def __init__(self, script: Script, record: Record) -> None:
        self._script = script
        self._record = record
        self._mode = Mode.ACCEPT
        self._refused = False

    async def handle_MAIL(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        self._mode = self._script.next_transaction()
        self._refused = False
        if self._mode is Mode.DROP_AT_MAIL:
            await self._break_connection(server)
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return "250 OK"

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        self._mode = self._script.next_for(address) or self._mode
        if self._mode is Mode.DROP_AT_MAIL:
            await self._break_connection(server)
        if self._mode is Mode.REFUSE_ONE and not self._refused:
            self._refused = True
            return "550 5.1.1 No such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        if self._mode is Mode.TEMPFAIL:
            return "451 4.3.0 Try again later"
        if self._mode is Mode.PERMFAIL:
            return "554 5.7.1 Not wanted here"
        self._record.append(envelope, answered=self._mode in ANSWERED)
        if self._mode is Mode.DROP_AFTER_DOT:
            await self._break_connection(server)
        if self._mode is Mode.HANG_AFTER_DOT:
            await asyncio.Event().wait()
        return "250 OK: taken over"

    async def handle_QUIT(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        if self._mode is Mode.DROP_AT_QUIT:
            await self._break_connection(server)
        return "221 Bye"

    async def _break_connection(self, server: SMTP) -> None:
        if isinstance(server.transport, asyncio.Transport):
            server.transport.abort()
        await asyncio.Event().wait()  # aiosmtpd cancels the connection's task when it learns of the break


async def listen(host: str, port: int, script: Script, record: Record) -> asyncio.Server:
    """Start to serve SMTP at `host`:`port` (0 takes a free port) and return the server."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(
        lambda: SMTP(Handler(script, record), hostname="mail.invalid", enable_SMTPUTF8=True, loop=loop), host, port
    )
