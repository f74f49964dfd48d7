"""`manage.py leases rescue`."""

import argparse
import signal
import threading
from types import FrameType
from typing import Any

from django.core.management.base import CommandError
from django.db import close_old_connections

from leases.cli.verb import EXIT_FOUND, Verb, positive_seconds
from leases.conf import conf
from leases.jobs.discovery import import_actors
from leases.jobs.rescuing import rescue


class Rescue(Verb):
    name = "rescue"
    help = "Enqueue again what the broker lost, as the functions in LEASES_RESCUERS find it."
    examples = """
  manage.py leases rescue                  a pass every 10 s; any number of these may run
  manage.py leases rescue --once --json    one pass; exits with 1 if a function failed

The first Ctrl-C or SIGTERM stops after the current pass, the second at once.
"""

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--once", action="store_true", help="one pass")
        parser.add_argument(
            "--interval", type=positive_seconds, default=10.0, metavar="SECONDS", help="default: %(default)s"
        )

    def run(self, *, database: str, as_json: bool, **options: Any) -> None:
        if not conf.RESCUERS:
            raise CommandError("LEASES_RESCUERS names no function; see leases.jobs.rescuing.", returncode=2)
        import_actors()
        if options["once"]:
            rescued = rescue()
            self._tell(rescued, as_json)
            if None in rescued.values():
                raise SystemExit(EXIT_FOUND)
            return
        stop = threading.Event()

        def ask_to_stop(number: int, frame: FrameType | None) -> None:
            signal.signal(number, signal.SIG_DFL)
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, ask_to_stop)
        while not stop.is_set():
            close_old_connections()
            rescued = rescue()
            if any(rescued.values()):
                self._tell(rescued, as_json)
            stop.wait(options["interval"])

    def _tell(self, rescued: dict[str, int | None], as_json: bool) -> None:
        if as_json:
            self.write_json(rescued)
            return
        for name, count in rescued.items():
            self.write(f"{name}: {'failed' if count is None else count}")
