"""`manage.py leases prune`."""

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandError

from leases import interventions, pruning
from leases.cli.verb import Verb, counted, duration, positive


class Prune(Verb):
    name = "prune"
    help = "Delete records of leases that ended long ago, in batches; incidents and fences only when asked."
    examples = """
  manage.py leases prune --older-than 90d
  manage.py leases prune --older-than 400d --incidents
  manage.py leases prune --older-than 800d --fences --reason "customers closed in 2024" --dry-run
"""

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--older-than", type=duration, required=True, metavar="AGE", help="as in 90d")
        parser.add_argument("--batch-size", type=positive, default=5000)
        parser.add_argument("--incidents", action="store_true", help="incidents too")
        parser.add_argument("--fences", action="store_true", help="fences too. " + pruning.FENCES_GIVE_UP)
        parser.add_argument("--reason", help="why the fences; it is kept")
        parser.add_argument("--by", default=interventions.operator(), help="who prunes them (default: %(default)s)")
        parser.add_argument("--dry-run", action="store_true", help="count; delete nothing")

    def run(self, *, database: str, as_json: bool, **options: Any) -> None:
        if options["fences"] and not (options["reason"] or "").strip():
            raise CommandError(f"--fences needs a --reason. {pruning.FENCES_GIVE_UP}", returncode=2)
        what = ["records", *(name for name in ("incidents", "fences") if options[name])]
        older_than = options["older_than"]
        if options["dry_run"]:
            totals = {name: pruning.count(name, older_than=older_than, using=database) for name in what}
        else:
            totals = {name: self._prune(name, database, options) for name in what}
        if as_json:
            self.write_json(totals)
            return
        for name, total in totals.items():
            self.write(f"{'would prune' if options['dry_run'] else 'pruned'} {counted(total, name.removesuffix('s'))}")

    def _prune(self, name: str, database: str, options: dict[str, Any]) -> int:
        total = 0
        for count in self._batches(name, database, options):
            total += count
            if sys.stderr.isatty():
                sys.stderr.write(f"\rpruned {total} {name}\x1b[K\r")
        return total

    def _batches(self, name: str, database: str, options: dict[str, Any]) -> Iterator[int]:
        shared: dict[str, Any] = {
            "older_than": options["older_than"],
            "batch_size": options["batch_size"],
            "using": database,
        }
        if name == "records":
            return pruning.prune_records(**shared)
        if name == "incidents":
            return pruning.prune_incidents(**shared)
        return pruning.prune_fences(reason=options["reason"], by=options["by"], **shared)
