"""`manage.py leases reopen` and `manage.py leases prune-jobs`: keys of jobs, and their history."""

import argparse
from typing import Any

from django.core.management.base import CommandError

from leases import interventions
from leases.cli.verb import EXIT_ABSENT, EXIT_FOUND, Verb, counted, duration, positive
from leases.errors import LeaseError
from leases.jobs import pruning
from leases.jobs.errors import ReceiptMissing


class Reopen(Verb):
    name = "reopen"
    help = "Open the key of a job that ran once, or is parked, so that its next message runs again. Kept on record."
    examples = """
  manage.py leases reopen welcome:42 --reason "the bonus was taken back by mistake"
"""

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("key")
        parser.add_argument("--reason", required=True, help="why it may take effect again; it is kept")
        parser.add_argument("--by", default=interventions.operator(), help="who decides (default: %(default)s)")

    def run(self, *, database: str, as_json: bool, **options: Any) -> None:
        try:
            from leases.jobs.reopening import reopen
        except ModuleNotFoundError as error:  # only projects with jobs have Dramatiq
            hint = "Type: pip install dramatiq"
            raise CommandError(f"Keys of jobs need a package that is missing: {error}. {hint}") from error
        try:
            reopening = reopen(options["key"], by=options["by"], reason=options["reason"], using=database)
        except ReceiptMissing as error:
            raise CommandError(str(error), returncode=EXIT_ABSENT) from error
        except ValueError as error:
            raise CommandError(str(error), returncode=2) from error
        except LeaseError as error:
            raise CommandError(str(error), returncode=EXIT_FOUND) from error
        if as_json:
            self.write_json({"key": reopening.key, "was": reopening.state, "ran_at": reopening.ran_at})
        else:
            self.write(f"opened {reopening.key}, which was {reopening.state}; its next message runs")


class PruneJobs(Verb):
    name = "prune-jobs"
    help = "Delete receipts past their actor's retention, and old slots and replayed dead letters, in batches."
    examples = """
  manage.py leases prune-jobs --older-than 90d
  manage.py leases prune-jobs --older-than 90d --dry-run --json

Receipts without a retention are never deleted: they are what keeps a job from running again.
"""

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--older-than", type=duration, required=True, metavar="AGE", help="of slots and letters")
        parser.add_argument("--batch-size", type=positive, default=5000)
        parser.add_argument("--dry-run", action="store_true", help="count; delete nothing")

    def run(self, *, database: str, as_json: bool, **options: Any) -> None:
        totals = {
            name: pruning.count(name, older_than=options["older_than"], using=database)
            if options["dry_run"]
            else sum(
                pruning.prune(name, older_than=options["older_than"], batch_size=options["batch_size"], using=database)
            )
            for name in pruning.WHAT
        }
        if as_json:
            self.write_json(totals)
            return
        for name, total in totals.items():
            self.write(f"{'would prune' if options['dry_run'] else 'pruned'} {counted(total, name.removesuffix('s'))}")
