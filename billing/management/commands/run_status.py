"""`manage.py run_status [RUN]`"""

import argparse
import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing import arguments, outages
from billing.models import Run
from billing.status import SHOWN, status

EPILOG = """\
examples:
  manage.py run_status
  manage.py run_status 42 --json

exit codes: 0 shown; 1 there is no such run; 2 wrong usage; 4 the database does not answer
"""

NO_ANSWER = 4


class Command(BaseCommand):
    help = "Show how far a billing run is, what it invoiced, and who needs a person."
    unavailable_returncode = NO_ANSWER

    def add_arguments(self, parser: CommandParser) -> None:
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = EPILOG
        parser.add_argument(
            "run", metavar="RUN", nargs="?", type=arguments.positive, help="its number (default: the latest)"
        )
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        parser.add_argument(
            "--limit",
            type=arguments.whole(0),
            default=SHOWN,
            help="show so many items that failed or are parked, and so many skipped (default: %(default)s)",
        )

    def handle(self, **options: Any) -> None:
        with outages.told("Nothing is known of the run for now; ask again.", returncode=NO_ANSWER):
            self._show(**options)

    def _show(self, **options: Any) -> None:
        runs = Run.objects.order_by("-pk")
        run = (runs.filter(pk=options["run"]) if options["run"] is not None else runs).first()
        if run is None:
            number = options["run"]
            raise CommandError("There is no run yet." if number is None else f"There is no run {number}.")
        result = status(run, shown=options["limit"])
        self.stdout.write(json.dumps(result.as_json()) if options["json"] else "\n".join(result.lines()))
