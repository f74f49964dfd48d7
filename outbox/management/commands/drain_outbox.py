"""manage.py drain_outbox: hand over what is due."""

import argparse
import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections, router
from django.db.models import Count

from outbox import channels, metrics
from outbox.conf import settings
from outbox.drain import Drainer, Until
from outbox.errors import OutboxError
from outbox.lane import Pace
from outbox.management import arguments, outage
from outbox.models import Message, State

logger = logging.getLogger("outbox.drain")

EXIT_PARKED = 3
EXIT_FORGOT = 4

EPILOG = """
examples:
  manage.py drain_outbox --watch                      a drainer for production; run any number of them
  manage.py drain_outbox --until-empty --json         from cron, or a test
  manage.py drain_outbox --watch --channel email --concurrency 8

The first SIGTERM, SIGHUP or Ctrl-C finishes the messages in hand and gives all others back, with their attempts as
before; a second one (but of SIGHUP) ends at once, and what was in hand will be in doubt.

exit codes:
  0   done, or stopped as asked
  2   bad usage
  3   done, and there are messages in doubt or dead (not with --watch)
  4   the database lost a part of its history; run 'manage.py outbox after_failover'
  75  the database does not answer; what could not be marked or given back will be swept
  128+n  ended by a second signal n
"""


class Command(BaseCommand):
    help = "Hand over the messages of the outbox that are due. Any number of drainers may run side by side."
    unavailable_returncode = outage.EXIT_DATABASE_LOST

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(
            prog_name, subcommand, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs
        )

    def add_arguments(self, parser: CommandParser) -> None:
        mode = parser.add_mutually_exclusive_group()
        mode.add_argument("--watch", action="store_true", help="go on until told to stop (default)")
        mode.add_argument("--once", action="store_true", help="one batch of each channel")
        mode.add_argument("--until-empty", action="store_true", help="until nothing is due")
        parser.add_argument("--channel", action="append", choices=channels.names(), help="only this one; repeatable")
        parser.add_argument("--limit", type=arguments.whole(10**9), help="end after so many messages")
        parser.add_argument("--batch-size", type=arguments.whole(10**5), help="messages per claim")
        parser.add_argument(
            "--micro-batch",
            type=arguments.whole(10**5),
            help="messages per intent; as many are in doubt after a crash",
        )
        parser.add_argument(
            "--concurrency", type=arguments.whole(1000), help="messages handed over at the same time, per channel"
        )
        parser.add_argument(
            "--rate",
            type=arguments.per_second,
            metavar="PER_SECOND",
            help="no more of each channel, by this drainer",
        )
        parser.add_argument("--claim-ttl", type=arguments.seconds(1), metavar="SECONDS", help="how long a claim lasts")
        parser.add_argument(
            "--poll-interval", type=arguments.seconds(0.01), metavar="SECONDS", help="how often to look when idle"
        )
        parser.add_argument("--no-notify", action="store_true", help="only poll: behind a pooler LISTEN hears nothing")
        parser.add_argument(
            "--max-runtime", type=arguments.seconds(0.01), metavar="SECONDS", help="end by itself after so long"
        )
        parser.add_argument("--dry-run", action="store_true", help="say what is due; change nothing")
        parser.add_argument("--json", action="store_true", help="one JSON object on stdout at the end")
        parser.add_argument(
            "--health-file", type=arguments.file, metavar="FILE", help="rewritten as long as it makes progress"
        )
        parser.add_argument(
            "--metrics",
            type=arguments.address,
            metavar="HOST:PORT",
            help="serve Prometheus metrics there; needs prometheus_client",
        )
        parser.add_argument("--database", help="the alias; default where the router writes messages")

    def handle(self, *args: Any, **options: Any) -> None:
        using = outage.known(options["database"] or router.db_for_write(Message))
        names = options["channel"] or channels.names()
        with outage.told():
            if options["dry_run"]:
                self._say_what_is_due(using, names, options["json"])
            else:
                self._drain(using, names, options)

    def _drain(self, using: str, names: list[str], options: dict[str, Any]) -> None:
        watching = not (options["once"] or options["until_empty"])
        try:
            drainer = Drainer(
                using=using,
                names=names,
                pace=_pace(options),
                until=Until.ONE_BATCH if options["once"] else Until.EMPTY if options["until_empty"] else Until.STOPPED,
                limit=options["limit"],
                max_runtime=options["max_runtime"],
                listen=watching and not options["no_notify"],
                measure=options["metrics"] is not None,
                progress=_Progress(options["health_file"], sys.stderr.isatty() and not options["json"]),
            )
            if options["metrics"]:
                self._serve_metrics(*options["metrics"])
            with _stopped_by_signals(drainer):
                report = drainer.run()
        except OutboxError as error:
            raise CommandError(str(error)) from error
        parked = Counter[str]() if watching or report.database_lost else _parked(using, names)
        if options["json"]:
            ends = {"database_lost": report.database_lost, "database_forgot": bool(report.database_forgot)}
            outcome = {**report.tally, "parked": dict(parked), **ends}
            self._say(json.dumps(outcome, sort_keys=True))
        else:
            self._say(_sentence(report.tally))
            if parked:
                self._say(f"waiting for a person: {_counts(parked)}")
        if report.database_forgot:
            sys.exit(EXIT_FORGOT)
        if report.database_lost:
            raise CommandError(
                "the database does not answer; what could not be marked or given back will be swept",
                returncode=outage.EXIT_DATABASE_LOST,
            )
        if parked:
            sys.exit(EXIT_PARKED)

    def _say(self, line: str) -> None:
        """Write a line; that nobody reads it any more changes nothing about what was done, nor the exit code."""
        if sys.stdout is None:  # closed before Python began
            return
        try:
            self.stdout.write(line)
            self.stdout.flush()
        except (OSError, ValueError):
            if getattr(self.stdout, "_out", None) is sys.stdout:
                sys.stdout = None  # or Python fails over the rest of it when it ends

    def _serve_metrics(self, host: str, port: int) -> None:
        if not metrics.available:
            raise CommandError("--metrics needs prometheus_client: pip install prometheus_client", returncode=2)
        try:
            self.stderr.write(f"metrics on http://{host}:{metrics.serve(host, port)}/metrics")
        except OSError as error:
            raise CommandError(f"cannot serve metrics on {host}:{port}: {error}") from error

    def _say_what_is_due(self, using: str, names: list[str], as_json: bool) -> None:
        due = dict.fromkeys(names, 0)
        with connections[using].cursor() as cursor:
            cursor.execute(
                "SELECT channel, count(*) FROM outbox_message WHERE state = 'pending' AND channel = ANY(%s)"
                " AND available_at <= statement_timestamp() GROUP BY channel",
                [names],
            )
            due.update(cursor.fetchall())
        self.stdout.write(json.dumps(due) if as_json else f"due now: {_counts(due)}")


class _Progress:
    """Tells that the drainer gets on: a file for a health check, a line for a person at a terminal."""

    def __init__(self, health_file: Path | None, tty: bool) -> None:
        self._health_file = health_file
        self._tty = tty
        self._said_at = 0.0

    def __call__(self, tally: Counter[str]) -> None:
        if time.monotonic() - self._said_at < 1.0:
            return
        self._said_at = time.monotonic()
        if self._health_file:
            self._write(self._health_file, tally)
        if self._tty:
            try:
                sys.stderr.write(f"\r{_sentence(tally)}\x1b[K\r")
            except (OSError, ValueError):  # the terminal was closed, and nobody reads it any more
                self._tty = False

    def _write(self, health_file: Path, tally: Counter[str]) -> None:
        now = datetime.now(UTC).isoformat()
        try:
            health_file = Path(os.path.realpath(health_file))  # a link stays one
            new = health_file.with_name(f"{health_file.name}.{os.getpid()}")
            new.write_text(json.dumps({"at": now, "pid": os.getpid(), **tally}) + "\n")
            new.replace(health_file)
        except (OSError, ValueError) as error:
            # A full disk must not leave what is in hand in doubt; the file gets old, and says so.
            logger.error("cannot write the health file: %s", error)


def _pace(options: dict[str, Any]) -> Pace:
    claim_ttl = options["claim_ttl"] or settings.CLAIM_TTL
    if claim_ttl > settings.MAX_CLAIM_TTL:
        raise CommandError(f"--claim-ttl is longer than OUTBOX_MAX_CLAIM_TTL = {settings.MAX_CLAIM_TTL}", returncode=2)
    return Pace(
        batch_size=options["batch_size"] or settings.BATCH_SIZE,
        micro_batch=options["micro_batch"],
        concurrency=options["concurrency"] or settings.CONCURRENCY,
        claim_ttl=claim_ttl,
        poll_interval=options["poll_interval"] or settings.POLL_INTERVAL,
        per_second=options["rate"],
    )


@contextlib.contextmanager
def _stopped_by_signals(drainer: Drainer) -> Iterator[None]:
    """Within the block, signals stop the drainer; in a thread, where Python has no signals, `stop()` alone does."""
    signals: list[int] = []

    def on_signal(signum: int, frame: FrameType | None) -> None:
        signals.append(signum)
        if len(signals) == 1:
            drainer.stop()
        else:
            os._exit(128 + signum)  # no cleaning up: it may be what hangs

    def on_hangup(signum: int, frame: FrameType | None) -> None:
        drainer.stop()  # a terminal that closes sends it twice

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]]
    handlers = {signal.SIGTERM: on_signal, signal.SIGINT: on_signal}
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
        handlers[signal.SIGHUP] = on_hangup
    before = {signum: signal.signal(signum, handler) for signum, handler in handlers.items()}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)


def _parked(using: str, names: list[str]) -> Counter[str]:
    parked = Message.objects.using(using).filter(state__in=[State.IN_DOUBT, State.DEAD], channel__in=names)
    return Counter(dict(parked.values_list("state").annotate(Count("id")).order_by("state")))


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())


def _sentence(tally: Counter[str]) -> str:
    return _counts({"claimed": 0, "sent": 0, **tally})
