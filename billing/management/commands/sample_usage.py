"""`manage.py sample_usage`: seeded sample data as the files the import commands read."""

import argparse
from datetime import date
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing.simulators.sample import Sample
from billing.simulators.sample_files import write_all
from billing.wording import counted

EPILOG = """\
example:
  manage.py sample_usage --customers 220 --seed 7 --period 2026-05 --out sample
  manage.py import_customers sample/customers.csv
  manage.py import_prices sample/prices.csv
  manage.py import_usage sample/usage.csv --format csv

Equal options write equal files. exit codes: 0 written, 1 an option is wrong or a file cannot be written
"""


class Command(BaseCommand):
    help = "Write made-up customers, prices and skewed usage of one month as CSV files."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = EPILOG
        parser.add_argument("--customers", type=int, default=220, help="how many (default: %(default)s)")
        parser.add_argument("--lines", type=int, default=4, help="lines of a small customer (default: %(default)s)")
        parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
        parser.add_argument("--period", required=True, metavar="YYYY-MM", help="the month the usage falls in")
        parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="made if it is missing")

    def handle(self, **options: Any) -> None:
        if options["customers"] < 1 or options["lines"] < 1:
            raise CommandError("--customers and --lines must be at least 1.")
        try:
            month = date.fromisoformat(f"{options['period']}-01")
        except ValueError:
            raise CommandError(f"--period is a month like 2026-05, got {options['period']!r}.") from None
        sample = Sample(options["customers"], options["seed"], month, lines=options["lines"])
        directory: Path = options["out"]
        try:
            written = write_all(directory, sample)
        except OSError as problem:
            raise CommandError(f"The sample cannot be written: {problem}") from problem
        for name, rows in written.items():
            self.stdout.write(f"{directory / name}.csv: {counted(rows, 'row')}")
