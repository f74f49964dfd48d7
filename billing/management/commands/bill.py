"""`manage.py bill PERIOD`"""

import argparse
import json
import sys
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing import money, queueing, rescuer, runs
from billing.errors import BrokerUnavailable
from billing.models import Run
from billing.periods import InvalidPeriod, Period
from billing.preview import preview
from billing.status import counts, status

POLL_SECONDS = 0.5
RESCUE_SECONDS = 3.0
PLAIN_LINE_SECONDS = 5.0

PARKED = 3
INTERRUPTED = 130

EPILOG = """\
Plans a run with one item per customer, everybody active or with usage left, and gives the items to the workers
(manage.py rundramatiq). Billing a period again invoices only who is not invoiced yet.

examples:
  manage.py bill 2026-05 --wait
  manage.py bill 2026-05 --customer C00001 C00002
  manage.py bill 2026-05-01/2026-05-16 --dry-run --json

exit codes: 0 planned, or with --wait: nobody is parked; 1 nothing was planned; 2 wrong usage;
            3 with --wait: some customers are parked and need a person; 130 interrupted, the run goes on
"""


class Command(BaseCommand):
    help = "Bill a period: at most one invoice and one email per customer."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = EPILOG
        parser.add_argument("period", metavar="PERIOD", help="a month (2026-05), or two dates, the second excluded")
        parser.add_argument("--customer", metavar="CODE", nargs="+", action="extend", default=[], help="only these")
        parser.add_argument("--wait", action="store_true", help="show progress until every customer has an outcome")
        parser.add_argument("--dry-run", action="store_true", help="show what would be invoiced, before tax")
        parser.add_argument("--json", action="store_true", help="print the result as one JSON object")

    def handle(self, **options: Any) -> None:
        try:
            period = Period.parse(options["period"])
            if options["dry_run"]:
                self._preview(period, options["customer"], as_json=options["json"])
                return
            run = runs.plan(period, codes=options["customer"])
        except (InvalidPeriod, runs.UnknownCustomers) as error:
            raise CommandError(str(error)) from error
        try:
            enqueued = queueing.enqueue_run(run)
        except BrokerUnavailable as error:
            self.stderr.write(f"run {run.pk}, {period}, is planned: {error}")
        else:
            if not options["json"]:
                self.stdout.write(f"run {run.pk}, {period}: {enqueued} customers enqueued")
        if options["wait"]:
            self._wait(run)
        result = status(run)
        if options["json"]:
            self.stdout.write(json.dumps(result.as_json()))
        elif options["wait"]:
            self.stdout.write("\n".join(result.lines()))
        if options["wait"] and result.parked:
            sys.exit(PARKED)

    def _wait(self, run: Run) -> None:
        shown, shown_at, rescued_at = "", 0.0, time.monotonic()
        on_terminal = self.stderr.isatty()
        try:
            while True:
                found = counts(run)
                text = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in found.items() if count)
                if on_terminal:
                    self.stderr.write(f"\r\x1b[K{text}", ending="")
                elif text != shown and time.monotonic() - shown_at > PLAIN_LINE_SECONDS:
                    self.stderr.write(text)
                    shown, shown_at = text, time.monotonic()
                if not found["open"] + found["failed"]:
                    return
                if time.monotonic() - rescued_at > RESCUE_SECONDS:
                    self._rescue()
                    rescued_at = time.monotonic()
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            self.stderr.write(f"\nNo longer waiting; the run goes on: manage.py run_status {run.pk}")
            sys.exit(INTERRUPTED)
        finally:
            if on_terminal:
                self.stderr.write("")

    def _rescue(self) -> None:
        try:
            rescuer.rescue()
        except BrokerUnavailable as error:
            self.stderr.write(f"Still waiting: {error}")

    def _preview(self, period: Period, codes: list[str], *, as_json: bool) -> None:
        rows, totals = [], dict[str, int]()
        for row in preview(period, codes=codes):
            if not row.reason:
                totals[row.currency] = totals.get(row.currency, 0) + row.net_minor
            if as_json:
                rows.append({name: getattr(row, name) for name in row.__slots__})
            else:
                net = money.format_minor(row.net_minor, row.currency)
                self.stdout.write(f"{row.customer}: {row.reason or f'{row.lines} lines, net {net}'}")
        if as_json:
            self.stdout.write(json.dumps({"period": str(period), "net_minor": totals, "customers": rows}))
        else:
            nets = ", ".join(money.format_minor(net, currency) for currency, net in sorted(totals.items()))
            self.stdout.write(f"dry run, {period}: net {nets or 'nothing'}, nothing was changed")
