"""`manage.py schedule`: fire what LEASES_SCHEDULE says, once."""

import argparse
import json
import signal
import threading
from datetime import UTC, datetime
from types import FrameType
from typing import Any

import dramatiq
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError
from dramatiq.errors import BrokerConnectionError
from redis.exceptions import RedisError

from leases.errors import LeaseBusy, LeaseError
from leases.holding import hold
from leases.jobs.discovery import import_actors
from leases.jobs.errors import InvalidSchedule
from leases.jobs.scheduler import Scheduler
from leases.jobs.schedules import Schedule, schedules

EPILOG = """\
Run as many as you like, on as many machines: one of them leads, by lease, and when it is gone another takes over
within its lease's 15 s. Each slot is a row with a unique key, so it is fired once. What becomes of slots that were
missed while none ran is said by the schedule itself ("missed": "latest", "all" or "skip").

examples:
  manage.py schedule
  manage.py schedule --list
  manage.py schedule --once          # from cron: fire what is due, then end

exit codes:
  0  done, or stopped by SIGTERM or Ctrl-C (a second one ends at once)
  1  with --once: another process schedules, or a server does not answer
  2  wrong usage, or LEASES_SCHEDULE cannot be understood
"""


class Command(BaseCommand):
    help = "Fire the schedules in LEASES_SCHEDULE, each slot once however many of these run."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = EPILOG
        mode = parser.add_mutually_exclusive_group()
        mode.add_argument("--once", action="store_true", help="one look, then end")
        mode.add_argument("--list", action="store_true", help="the schedules and when they are due next; fires nothing")
        parser.add_argument("--json", action="store_true", dest="as_json", help="with --list: one JSON document")

    def handle(self, *args: Any, **options: Any) -> None:
        import_actors()
        try:
            known = schedules()
        except InvalidSchedule as error:
            raise CommandError(str(error), returncode=2) from error
        actors = dramatiq.get_broker().actors
        for schedule in known:
            if schedule.actor not in actors:
                self.stderr.write(
                    f"{schedule.name} fires {schedule.actor}, which no broker knows: define the actor in a module "
                    "`actors` of an app, or correct its name."
                )
        if options["list"]:
            self._list(known, as_json=options["as_json"])
        elif options["once"]:
            self._once(known)
        else:
            scheduler = Scheduler(known, stop=stop_event())
            if not known:
                self.stderr.write("LEASES_SCHEDULE is empty: nothing will ever be due.")
            scheduler.run()

    def _once(self, known: list[Schedule]) -> None:
        scheduler = Scheduler(known)
        try:
            with hold(scheduler.resource, using=scheduler.using) as lease:
                fired = scheduler.look(lease)
        except LeaseBusy as error:
            raise CommandError(f"Another process schedules: {error}") from error
        except (LeaseError, RedisError, DatabaseError, BrokerConnectionError) as error:
            raise CommandError(f"Not all that is due could be fired: {error}") from error
        self.stdout.write(f"enqueued: {fired}")

    def _list(self, known: list[Schedule], *, as_json: bool) -> None:
        now = datetime.now(UTC)
        rows = [
            {
                "schedule": schedule.name,
                "next": next(schedule.after(now)).isoformat(),
                "actor": schedule.actor,
                "when": schedule.cron or f"every {schedule.every}",
                "timezone": str(schedule.timezone),
                "missed": schedule.missed,
            }
            for schedule in known
        ]
        if as_json:
            self.stdout.write(json.dumps(rows))
            return
        for row in rows:
            self.stdout.write("  ".join(str(value) for value in row.values()))


def stop_event() -> threading.Event:
    """Return an event that the first SIGTERM or Ctrl-C sets; the second one ends the process as it always does."""
    stop = threading.Event()

    def handler(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop.set()

    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGINT, handler)
    return stop
