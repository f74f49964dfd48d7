"""`manage.py after_failover`"""

import argparse
import json
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import DEFAULT_DB_ALIAS

from billing import failover, outages
from billing.models import Series
from billing.wording import counted

EPILOG = """\
Workers and drainers stop by themselves when a replica was promoted or a backup restored, and say so. Run this once
then, on the new primary. What was open is parked, what may have been mailed is in doubt, and no job of before can write
any more; `manage.py run_status` and `manage.py outbox status` show what a person has to look at. A copy of the
database's files is not noticed: run it by hand after one.

examples:
  manage.py after_failover --dry-run
  manage.py after_failover
  manage.py after_failover --nothing-lost     after the failover to a synchronous standby

exit codes: 0 done; 1 the database does not answer; 2 wrong usage
"""


class Command(BaseCommand):
    help = "Put right what a promoted replica or a restored backup may have forgotten, and let work go on."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = EPILOG
        parser.add_argument("--nothing-lost", action="store_true", help="only accept the database as the one it is now")
        parser.add_argument("--dry-run", action="store_true", help="count; change nothing")
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS)
        parser.add_argument("--json", action="store_true", help="one JSON document on stdout")

    def handle(self, **options: Any) -> None:
        dry_run = options["dry_run"]
        with outages.told("Not all was put right, and nobody works on until it is: run this again once it answers."):
            done = failover.put_right(options["database"], nothing_lost=options["nothing_lost"], dry_run=dry_run)
            next_numbers = dict(Series.objects.using(options["database"]).values_list("name", "next_number"))
        if options["json"]:
            self.stdout.write(json.dumps({**done, "dry_run": dry_run, "next_numbers": next_numbers}))
            return
        prefix = "would have " if dry_run else ""
        self.stdout.write(f"{prefix}parked {counted(done['items_parked'], 'open item')}")
        self.stdout.write(f"{prefix}put {counted(done['messages_in_doubt'], 'message')} in doubt")
        self.stdout.write(f"{prefix}raised {counted(done['fences_raised'], 'fence')}")
        if not options["nothing_lost"]:
            for series, number in sorted(next_numbers.items()):
                self.stdout.write(
                    f"the next number is {series}-{number:06d}: if one as high was mailed before, raise it first "
                    "(docs/operating.md)"
                )
