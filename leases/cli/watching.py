"""`manage.py leases watch`."""

import argparse
import signal
import threading
from types import FrameType
from typing import Any

from leases.cli.verb import EXIT_FOUND, Verb, counted
from leases.watcher import Watcher


class Watch(Verb):
    name = "watch"
    help = "Find leases that expired while their holders may still be running, and open incidents."
    examples = """
  manage.py leases watch          any number of these may run: one of them watches
  manage.py leases watch --once   look until sure of every lease, at most half a ttl; exits with 1 if one expired

The first Ctrl-C or SIGTERM stops after the current look, the second at once. Dramatiq workers can do the same with
leases.jobs.LeaseWatcher; then this need not run.
"""

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--once", action="store_true", help="look, whoever else watches, and end")

    def run(self, *, database: str, as_json: bool, **options: Any) -> None:
        if options["once"]:
            self._look_once(database, as_json)
            return
        stop = threading.Event()

        def ask_to_stop(number: int, frame: FrameType | None) -> None:
            if stop.is_set():
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            self.warn("Stopping; once more stops at once.")
            stop.set()

        before = {number: signal.signal(number, ask_to_stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            Watcher(using=database, stop=stop).run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _look_once(self, database: str, as_json: bool) -> None:
        expired = Watcher(using=database).look_until_sure()
        if as_json:
            self.write_json({"expired": expired})
        else:
            self.write(
                f"{counted(expired, 'lease')} expired under a running holder" if expired else "no lease expired unseen"
            )
        if expired:
            raise SystemExit(EXIT_FOUND)
