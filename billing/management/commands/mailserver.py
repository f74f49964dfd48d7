"""`manage.py mailserver`: a mail server that records what it took over, and misbehaves as told."""

import argparse
import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing import arguments

if TYPE_CHECKING:
    from billing.simulators.mail_server import Mode, Record, Script

EPILOG = """\
modes:
  accept          take the mail over and say so
  drop_at_mail    break the connection before the mail is taken over
  drop_after_dot  take it over, break the connection before the answer
  hang_after_dot  take it over, never answer
  tempfail        answer 451 after the final dot
  permfail        answer 554 after the final dot
  drop_at_quit    accept, break the connection at QUIT
  refuse_one      refuse the first recipient of each envelope

A list (tempfail,drop_after_dot,accept) is a script: the first mail meets the first mode, the last mode stays.

example:
  manage.py mailserver --port 2525 --record mails.jsonl --recipient-mode slow@example.org=hang_after_dot

Prints "listening on ADDRESS:PORT" when it is ready and runs until SIGTERM or Ctrl-C. One JSON line per envelope
taken over (time, mail_from, rcpt_tos, message_id, subject, digest, answered) is on disk before the answer is given.
Needs aiosmtpd, which requirements-dev.txt brings.
exit codes: 0 stopped by a signal; 1 the address or the record cannot be used, or aiosmtpd is missing; 2 wrong usage
"""


class Command(BaseCommand):
    help = "Run a real SMTP server that records every envelope it took over, also those it never answered."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = EPILOG
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
        parser.add_argument(
            "--port", type=arguments.port, default=2525, help="0 takes a free one (default: %(default)s)"
        )
        parser.add_argument("--record", type=Path, required=True, metavar="FILE", help="append the envelopes here")
        parser.add_argument("--mode", default="accept", metavar="MODE[,MODE...]", help="see below (default: accept)")
        parser.add_argument(
            "--recipient-mode",
            action="append",
            default=[],
            metavar="ADDRESS=MODE[,MODE...]",
            help="for mails to this address; may be given several times",
        )

    def handle(self, **options: Any) -> None:
        try:
            from billing.simulators.mail_server import Record, Script
        except ModuleNotFoundError as problem:
            raise CommandError(f"{problem.name} is not installed: pip install -r requirements-dev.txt") from problem
        by_recipient = {}
        for entry in options["recipient_mode"]:
            address, separator, modes = entry.partition("=")
            if not separator:
                raise CommandError(f"--recipient-mode is ADDRESS=MODE, got {entry!r}.")
            by_recipient[address] = parse_modes(modes)
        script = Script(parse_modes(options["mode"]), by_recipient)
        try:
            record = Record(options["record"])
        except OSError as problem:
            raise CommandError(f"The record cannot be written: {problem}") from problem
        try:
            asyncio.run(self.serve(options["host"], options["port"], script, record))
        except (OSError, OverflowError) as problem:
            raise CommandError(f"The mail server cannot start on port {options['port']}: {problem}") from problem
        finally:
            record.close()

    async def serve(self, host: str, port: int, script: "Script", record: "Record") -> None:
        from billing.simulators.mail_server import listen

        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        server = await listen(host, port, script, record)
        address = server.sockets[0].getsockname()
        self.stdout.write(f"listening on {address[0]}:{address[1]}")
        self.stdout.flush()
        await stop.wait()
        server.close()


def parse_modes(text: str) -> "list[Mode]":
    """Return the modes named in a comma-separated list; raise `CommandError` for one that is not known."""
    from billing.simulators.mail_server import Mode

    try:
        return [Mode(name.strip()) for name in text.split(",")]
    except ValueError as problem:
        raise CommandError(f"{problem}; known: {', '.join(Mode)}.") from problem
