"""`manage.py sample_usage`: seeded sample data as the files the import commands read."""

import argparse
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing import arguments
from billing.simulators.sample import Sample
from billing.simulators.sample_files import write_all
from billing.wording import counted

EPILOG = """\
example:
  manage.py sample_usage --customers 220 --seed 7 --period 2026-05 --out sample
  manage.py import_customers sample/customers.csv
  manage.py import_prices sample/prices.csv
  manage.py import_usage sample/usage.csv --format csv

Equal options write equal files. exit codes: 0 written; 1 a file cannot be written; 2 wrong usage
"""


class Command(BaseCommand):
    help = "Write made-up customers, prices and skewed usage of one month as CSV files."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = EPILOG
        parser.add_argument("--customers", type=arguments.positive, default=220, help="how many (default: %(default)s)")
        parser.add_argument(
            "--lines", type=arguments.positive, default=4, help="lines of a small customer (default: %(default)s)"
        )
        parser.add_argument("--seed", type=arguments.whole(-arguments.MOST), default=1, help="default: %(default)s")
        parser.add_argument(
            "--period", type=arguments.month, required=True, metavar="YYYY-MM", help="the month the usage falls in"
        )
        parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="made if it is missing")

    def handle(self, **options: Any) -> None:
        sample = Sample(options["customers"], options["seed"], options["period"].first, lines=options["lines"])
        directory: Path = options["out"]
        try:
            written = write_all(directory, sample)
        except OSError as problem:
            raise CommandError(f"The sample cannot be written: {problem}") from problem
        for name, rows in written.items():
            self.stdout.write(f"{directory / name}.csv: {counted(rows, 'row')}")
