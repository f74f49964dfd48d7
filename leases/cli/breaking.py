"""`manage.py leases break`."""

import argparse
from typing import Any

from django.core.management.base import CommandError

from leases import breaking, interventions
from leases.cli.verb import EXIT_ABSENT, EXIT_FOUND, Verb, resource, unavailable
from leases.errors import LeaseBusy, LeaseCorrupt, LeaseUnavailable, NotLeased, ReasonMissing


class Break(Verb):
    name = "break"
    help = "End leases for their holders, who can write no more from then on; others may start at once."
    examples = """
  manage.py leases break customer:42 --reason "worker-3 is frozen, INC-118"
  manage.py leases break customer:42 --token 1795959547850892 --reason "..."
"""

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("resources", metavar="RESOURCE", nargs="+", type=resource)
        parser.add_argument("--reason", required=True, help="for those who ask later; it is kept")
        parser.add_argument("--token", type=int, help="only if it is still the lease of this token")
        parser.add_argument("--by", default=interventions.operator(), help="who breaks it (default: %(default)s)")
        parser.add_argument("--dry-run", action="store_true", help="say whose leases; break nothing")

    def run(self, *, database: str, as_json: bool, **options: Any) -> None:
        if options["token"] is not None and len(options["resources"]) > 1:
            raise CommandError("--token is about one resource; name only one.", returncode=2)
        outcomes = [self._break(resource, database=database, **options) for resource in options["resources"]]
        if as_json:
            self.write_json(outcomes)
        for outcome in () if as_json else outcomes:
            (self.warn if outcome["error"] else self.write)(outcome["text"])
        codes = [outcome["exit_code"] for outcome in outcomes if outcome["error"]]
        if codes:
            raise SystemExit(max(codes))

    def _break(self, resource: str, *, database: str, **options: Any) -> dict[str, Any]:
        try:
            if options["dry_run"]:
                holder, token = breaking.current(resource, using=database)
                if token is None:
                    raise NotLeased(resource, token=options["token"], current=None)
                text = f"would break {resource}, token {token}, holder {holder}"
            else:
                broken = breaking.break_lease(
                    resource, reason=options["reason"], by=options["by"], token=options["token"], using=database
                )
                token = broken.token
                text = f"broke {resource}, token {token}: its holder can write no more"
        except ReasonMissing as error:
            raise CommandError(str(error), returncode=2) from error
        except (NotLeased, LeaseCorrupt, LeaseBusy, LeaseUnavailable) as error:
            code = EXIT_ABSENT if isinstance(error, NotLeased) else EXIT_FOUND
            code = unavailable("").returncode if isinstance(error, LeaseUnavailable) else code
            return {"resource": resource, "token": None, "error": True, "text": str(error), "exit_code": code}
        return {"resource": resource, "token": token, "error": False, "text": text, "exit_code": 0}
