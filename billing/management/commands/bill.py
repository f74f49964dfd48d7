"""`manage.py bill PERIOD`"""

import argparse
import json
import sys
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper
from django.db import close_old_connections
from django.utils import timezone

from billing import arguments, money, outages, queueing, rescuer, runs, unclaimed
from billing.conf import conf
from billing.errors import BrokerUnavailable
from billing.models import Item, Run
from billing.periods import YEARS_AHEAD, YEARS_BACK, InvalidPeriod, Period
from billing.preview import Preview, preview
from billing.status import SHOWN, counts, status, unclaimed_lines
from billing.wording import counted

POLL_SECONDS = 0.5
RESCUE_SECONDS = 3.0
PLAIN_LINE_SECONDS = 5.0
IDLE_SECONDS = 5.0
BEGIN_SECONDS = 2.0
#: How many customers of each outcome a dry run shows.
EXAMPLES = 10

PARKED = 3
UNKNOWN = 4
INTERRUPTED = 130

EPILOG = """\
Plans a run with one item per customer, everybody active or with usage left, and gives the items to the workers
(manage.py rundramatiq). Billing a period again invoices only who is not invoiced yet.

examples:
  manage.py bill 2026-05 --wait
  manage.py bill 2026-05 --customer C00001 C00002
  manage.py bill 2026-05-01/2026-05-16 --dry-run --json

exit codes: 0 planned, or with --wait: nobody is parked; 1 nothing was planned; 2 wrong usage;
            3 with --wait: some customers are parked and need a person; 4 planned, but the database stopped answering,
            the run goes on once it does; 130 interrupted, the run goes on
"""

FAR = (
    f"{{period}} lies more than {YEARS_BACK} years back or {YEARS_AHEAD} ahead, so nothing was planned; "
    "if it is meant, say --any-year."
)
NOT_BEGUN = "no worker has begun: manage.py rundramatiq runs them"
NOT_PLANNED = (
    "Nobody was enqueued. Bill again once it answers: a run that was planned all the same does no harm, and "
    "nobody is invoiced twice."
)
PLANNED = (
    "Run {run} is planned and goes on once it answers: see manage.py run_status {run}. What the workers were not given "
    "yet, manage.py rescue enqueues."
)


class Command(BaseCommand):
    help = "Bill a period: at most one invoice and one email per customer."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = EPILOG
        parser.add_argument("period", metavar="PERIOD", help="a month (2026-05), or two dates, the second excluded")
        parser.add_argument(
            "--customer", metavar="CODE", type=arguments.name, nargs="+", action="extend", default=[], help="only these"
        )
        parser.add_argument("--wait", action="store_true", help="show progress until every customer has an outcome")
        parser.add_argument("--dry-run", action="store_true", help="show what would be invoiced, before tax")
        parser.add_argument(
            "--any-year", action="store_true", help=f"also more than {YEARS_BACK} years back or {YEARS_AHEAD} ahead"
        )
        parser.add_argument("--json", action="store_true", help="print the result as one JSON object")

    def handle(self, **options: Any) -> None:
        try:
            period = Period.parse(options["period"])
            if period.is_far_from(timezone.now().date()) and not options["any_year"]:
                raise CommandError(FAR.format(period=period))
            with outages.told(NOT_PLANNED):
                self._warn_of_unclaimed(period, options["customer"])
                if options["dry_run"]:
                    self._preview(period, options["customer"], as_json=options["json"])
                    return
                run = runs.plan(period, codes=options["customer"])
        except (InvalidPeriod, runs.UnknownCustomers) as error:
            raise CommandError(str(error)) from error
        with outages.told(PLANNED.format(run=run.pk), returncode=UNKNOWN):
            enqueued = self._enqueue(run, period, quiet=options["json"])
            if options["wait"]:
                self._wait(run)
            elif enqueued and not options["json"]:
                self._look_for_workers(run)
            result = status(run)
        if options["json"]:
            self.stdout.write(json.dumps(result.as_json()))
        elif options["wait"]:
            self.stdout.write("\n".join(result.lines()))
        if options["wait"] and result.parked:
            sys.exit(PARKED)

    def _warn_of_unclaimed(self, period: Period, codes: list[str]) -> None:
        if to_come := unclaimed.to_come(period, codes=codes):
            customers, until = to_come
            self.stderr.write(
                f"{period} is not over for {counted(customers, 'customer')}, for the last until {until:%Y-%m-%d %H:%M} "
                "UTC: what they use until then is on no invoice unless theirs is voided and billed again.",
                self.style.WARNING,
            )
        found = unclaimed.before(period, codes=codes)
        if found:
            self.stderr.write(
                f"{counted(len(found), 'customer')} with usage from before {period} that is on no invoice and that "
                "this run does not bill:",
                self.style.WARNING,
            )
            for line in unclaimed_lines(found, SHOWN):
                self.stderr.write(line, self.style.WARNING)

    def _enqueue(self, run: Run, period: Period, *, quiet: bool) -> int:
        try:
            enqueued = queueing.enqueue_run(run)
        except BrokerUnavailable as error:
            self.stderr.write(f"run {run.pk}, {period}, is planned: {error}")
            return 0
        if not quiet:
            self.stdout.write(f"run {run.pk}, {period}: {counted(enqueued, 'customer')} enqueued")
        return enqueued

    def _look_for_workers(self, run: Run) -> None:
        """Say so if nobody begins within a moment: whatever the broker is, that is what a worker would do."""
        looks_until = time.monotonic() + BEGIN_SECONDS
        while not _has_begun(run):
            if time.monotonic() > looks_until:
                self.stderr.write(NOT_BEGUN, self.style.WARNING)
                return
            time.sleep(POLL_SECONDS / 5)

    def _wait(self, run: Run) -> None:
        """Show progress until everybody has an outcome; an outage of the database is waited out, within bounds."""
        line = ProgressLine(self.stderr)
        began_at = answered_at = rescued_at = time.monotonic()
        try:
            while True:
                left = True
                try:
                    found = counts(run)
                    left = bool(found["open"] + found["failed"])
                    text = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in found.items() if count)
                    waits_long = left and time.monotonic() - began_at > IDLE_SECONDS
                    if waits_long and not _has_begun(run):
                        text += f"; {NOT_BEGUN}"
                    if left and time.monotonic() - rescued_at > RESCUE_SECONDS:
                        rescued_at = time.monotonic()
                        rescuer.rescue()
                    answered_at = time.monotonic()
                except BrokerUnavailable as error:
                    text = f"Still waiting: {error}"
                except outages.OUTAGE as error:
                    if time.monotonic() - answered_at > conf.DATABASE_PATIENCE.total_seconds():
                        raise
                    text = f"Still waiting: {outages.sentence(error)}"
                    close_old_connections()
                line.show(text)
                if not left:
                    return
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            self.stderr.write(f"\nNo longer waiting; the run goes on: manage.py run_status {run.pk}")
            sys.exit(INTERRUPTED)
        finally:
            line.end()

    def _preview(self, period: Period, codes: list[str], *, as_json: bool) -> None:
        rows = list(preview(period, codes=codes))
        totals: dict[str, int] = {}
        by_outcome: dict[Item.Outcome, list[Preview]] = {outcome: [] for outcome in Item.Outcome}
        for row in rows:
            by_outcome[row.outcome].append(row)
            if row.outcome is Item.Outcome.ISSUED:
                totals[row.currency] = totals.get(row.currency, 0) + row.net_minor
        if as_json:
            shown = [{name: getattr(row, name) for name in row.__slots__} for row in rows]
            self.stdout.write(json.dumps({"period": str(period), "net_minor": totals, "customers": shown}))
            return
        nets = ", ".join(money.format_minor(net, currency) for currency, net in sorted(totals.items()))
        outcomes = ", ".join(f"{len(of)} {kind.replace('_', ' ')}" for kind, of in by_outcome.items() if of)
        self.stdout.write(f"dry run, {period}: {counted(len(rows), 'customer')}: {outcomes or 'nobody'}")
        for kind, of in by_outcome.items():
            for row in of[:EXAMPLES]:
                net = money.format_minor(row.net_minor, row.currency)
                self.stdout.write(f"  {row.customer}: {row.reason or counted(row.lines, 'line') + ', net ' + net}")
            if len(of) > EXAMPLES:
                self.stdout.write(f"  and {len(of) - EXAMPLES} more {kind.replace('_', ' ')}; --json shows all")
        self.stdout.write(f"net {nets or 'nothing'} before tax; nothing was changed")


def _has_begun(run: Run) -> bool:
    return Item.objects.filter(run=run).exclude(started_at=None, outcome="").exists()


class ProgressLine:
    """One line that is written over on a terminal, and now and then a new one elsewhere."""

    def __init__(self, stream: OutputWrapper) -> None:
        self._stream = stream
        self._on_terminal = stream.isatty()
        self._shown, self._shown_at = "", 0.0

    def show(self, text: str) -> None:
        if self._on_terminal:
            self._stream.write(f"\r\x1b[K{text}", ending="")
        elif text != self._shown and time.monotonic() - self._shown_at > PLAIN_LINE_SECONDS:
            self._stream.write(text)
            self._shown, self._shown_at = text, time.monotonic()

    def end(self) -> None:
        if self._on_terminal:
            self._stream.write("")
