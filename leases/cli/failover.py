"""`manage.py leases after_failover`."""

import argparse
from typing import Any

from leases import forgetting
from leases.cli.verb import Verb, counted


class AfterFailover(Verb):
    name = "after_failover"
    help = "After a promotion or a restore: raise every fence, so that no holder of before can write, and go on."
    examples = """
  manage.py leases after_failover
  manage.py leases after_failover --nothing-lost      after the failover to a synchronous standby
"""

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--nothing-lost", action="store_true", help="only accept the database as the one it is now")
        parser.add_argument("--dry-run", action="store_true", help="count the fences; change nothing")

    def run(self, *, database: str, as_json: bool, **options: Any) -> None:
        dry_run = options["dry_run"]
        raised = forgetting.put_right(database, nothing_lost=options["nothing_lost"], dry_run=dry_run)
        if as_json:
            self.write_json({"fences": raised, "dry_run": dry_run})
        else:
            self.write(
                f"would raise {counted(raised, 'fence')}"
                if dry_run
                else f"raised {counted(raised, 'fence')}; leases are granted again"
            )
