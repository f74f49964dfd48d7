"""`manage.py rescue --once|--watch`"""

import argparse
import signal
import threading
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, InterfaceError, close_old_connections

from billing import arguments, outages, rescuer
from billing.errors import BrokerUnavailable

EPILOG = """\
Items whose job began and ended without an outcome (a killed worker) are enqueued as soon as their lease is gone; items
that nobody began are when nothing begins that was enqueued before them either (their message was lost). Run one or
more; a message too many is harmless.

examples:
  manage.py rescue --watch
  manage.py rescue --once

exit codes: 0 done, or stopped by SIGTERM or Ctrl-C; 1 with --once: Redis or the database does not answer; 2 wrong usage
"""

FAILURES = (BrokerUnavailable, DatabaseError, InterfaceError)


class Command(BaseCommand):
    help = "Enqueue again the items that the broker or a killed worker lost."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = EPILOG
        mode = parser.add_mutually_exclusive_group(required=True)
        mode.add_argument("--once", action="store_true", help="one pass")
        mode.add_argument("--watch", action="store_true", help="a pass every --interval, until stopped")
        parser.add_argument(
            "--interval", type=arguments.seconds, metavar="SECONDS", default=2.0, help="default: %(default)s"
        )

    def handle(self, **options: Any) -> None:
        if options["once"]:
            try:
                self._pass()
            except FAILURES as error:
                raise CommandError(f"The pass could not be finished: {outages.cause(error)}.") from error
            return
        stop = stop_event()
        while not stop.is_set():
            close_old_connections()
            try:
                self._pass()
            except FAILURES as error:
                self.stderr.write(f"The pass could not be finished and is done again: {outages.cause(error)}.")
            stop.wait(options["interval"])

    def _pass(self) -> None:
        rescued = rescuer.rescue()
        if rescued:
            self.stdout.write(f"enqueued again: {rescued.abandoned} abandoned, {rescued.stalled} stalled")


def stop_event() -> threading.Event:
    """Return an event that the first SIGTERM or Ctrl-C sets; the second one ends the process as it always does."""
    stop = threading.Event()

    def handler(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop.set()

    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGINT, handler)
    return stop
