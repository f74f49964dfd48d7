"""`manage.py workload`: how much waits, for how long, and how many workers it takes."""

import argparse
import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, ProgrammingError
from django.db.models import QuerySet
from dramatiq.errors import BrokerConnectionError
from redis.exceptions import RedisError

from leases.cli.verb import natural, positive_seconds
from leases.fence import NO_SUCH_TABLE, sqlstate
from leases.jobs import workload
from leases.jobs.discovery import import_actors
from leases.jobs.models import Receipt
from leases.jobs.workload import QueueState

EPILOG = """\
A worker is one thread. Suggested are as many as were busy in the last minutes, and those that run what waits within
--drain-within; an autoscaler can take the number from --json or --metrics. On RabbitMQ the oldest age is counted from
what was begun last and from when the queue was last seen empty, and running messages are not known.

examples:
  manage.py workload
  manage.py workload --json --queues billing --drain-within 600 --max 32
  manage.py workload --metrics > /var/lib/node_exporter/workload.prom
  manage.py workload --duplicates    # what was enqueued more than once

exit codes: 0 done; 1 the broker, Redis or the database does not answer; 2 wrong usage
"""
_METRICS = [
    ("waiting", "jobs_waiting", "Messages that wait for a worker."),
    ("delayed", "jobs_delayed", "Messages that are not due yet."),
    ("running", "jobs_running", "Messages that workers hold."),
    ("dead", "jobs_dead", "Dead letters that the broker still keeps."),
    ("oldest_age_s", "jobs_oldest_age_seconds", "How long the oldest waiting message has waited."),
    ("mean_run_s", "jobs_mean_run_seconds", "How long a job ran lately."),
    ("busy_workers", "jobs_busy_workers", "How many worker threads were busy lately, on average."),
    ("suggested_workers", "jobs_suggested_workers", "How many worker threads the work takes."),
]
_SHOWN = 50


class Command(BaseCommand):
    help = "Show each queue's depth, oldest age and suggested number of workers."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = EPILOG
        form = parser.add_mutually_exclusive_group()
        form.add_argument("--json", action="store_true", dest="as_json", help="one JSON document")
        form.add_argument("--metrics", action="store_true", help="the text format of Prometheus")
        parser.add_argument("--duplicates", action="store_true", help="jobs that stand in a queue more than once")
        parser.add_argument("--queues", nargs="+", metavar="QUEUE", help="only these (default: all that actors name)")
        parser.add_argument(
            "--drain-within", type=positive_seconds, default=300.0, metavar="SECONDS", help="default: %(default)s"
        )
        parser.add_argument("--min", type=natural, default=1, metavar="N", dest="least", help="default: %(default)s")
        parser.add_argument("--max", type=natural, default=64, metavar="N", dest="most", help="default: %(default)s")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["least"] > options["most"]:
            raise CommandError("--min is above --max", returncode=2)
        if options["duplicates"] and options["metrics"]:
            raise CommandError("--duplicates is for people, or --json", returncode=2)
        import_actors()
        try:
            if options["duplicates"]:
                self._duplicates(options["queues"], as_json=options["as_json"])
                return
            states = workload.measure(
                queues=options["queues"],
                drain_within=timedelta(seconds=options["drain_within"]),
                least=options["least"],
                most=options["most"],
            )
        except ProgrammingError as error:
            if sqlstate(error) != NO_SUCH_TABLE:
                raise
            raise CommandError("The database has no tables of jobs: run manage.py migrate first.") from error
        except (RedisError, DatabaseError, BrokerConnectionError, OSError) as error:
            raise CommandError(f"A server does not answer: {str(error).strip() or repr(error)}") from error
        if options["as_json"]:
            self.stdout.write(json.dumps([state.as_dict() for state in states]))
        elif options["metrics"]:
            self.stdout.write("\n".join(metrics(states)))
        else:
            self._table(states)

    def _table(self, states: list[QueueState]) -> None:
        line = "{:<20} {:>9} {:>9} {:>9} {:>6} {:>10} {:>10} {:>10}"
        self.stdout.write(
            line.format("queue", "waiting", "delayed", "running", "dead", "oldest", "mean run", "suggested")
        )
        for state in states:
            self.stdout.write(
                line.format(
                    state.queue,
                    state.waiting,
                    state.delayed,
                    "?" if state.running is None else state.running,
                    state.dead,
                    "?" if state.oldest_age_s is None else f"{state.oldest_age_s:.1f} s",
                    "?" if state.mean_run_s is None else f"{state.mean_run_s:.3f} s",
                    state.suggested_workers,
                )
            )

    def _duplicates(self, queues: Iterable[str] | None, *, as_json: bool) -> None:
        queued = workload.duplicates(queues=queues)
        again: QuerySet[Receipt] = Receipt.objects.filter(last_asked_at__isnull=False).order_by("-last_asked_at")
        asked = list(again.values_list("key", "asked_again", "state")[:_SHOWN])
        if as_json:
            document = {
                "queued": None
                if queued is None
                else [{"queue": queue, "job": job, "messages": number} for queue, job, number in queued],
                "asked_again": [{"key": key, "times": times, "state": state} for key, times, state in asked],
            }
            self.stdout.write(json.dumps(document))
            return
        if queued is None:
            self.stdout.write("In the queues: RabbitMQ does not show its messages.")
        else:
            self.stdout.write(f"In the queues more than once: {len(queued)}")
            for queue, job, number in queued[:_SHOWN]:
                self.stdout.write(f"  {number:>6} x {job}  ({queue})")
        self.stdout.write(f"Asked for again after they had run, the latest {_SHOWN}: {len(asked)}")
        for key, times, state in asked:
            self.stdout.write(f"  {times:>6} x {key}  ({state})")


def metrics(states: list[QueueState]) -> Iterable[str]:
    """Yield the lines of Prometheus' text format."""
    for attribute, name, text in _METRICS:
        yield f"# HELP {name} {text}"
        yield f"# TYPE {name} gauge"
        for state in states:
            value = getattr(state, attribute)
            if value is not None:
                queue = state.queue.replace("\\", "\\\\").replace('"', '\\"')
                yield f'{name}{{queue="{queue}"}} {value}'
