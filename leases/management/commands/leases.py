"""`manage.py leases VERB`: look at leases, and intervene."""

import argparse
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import InterfaceError, OperationalError, ProgrammingError, connections
from redis.exceptions import RedisError

from leases.cli.breaking import Break
from leases.cli.doctor import Doctor
from leases.cli.failover import AfterFailover
from leases.cli.headroom import HeadroomVerb
from leases.cli.jobs import PruneJobs, Reopen
from leases.cli.listing import Ls, Show
from leases.cli.pruning import Prune
from leases.cli.rescuing import Rescue
from leases.cli.verb import EXIT_UNAVAILABLE, Verb, unavailable
from leases.cli.watching import Watch
from leases.fence import NO_SUCH_TABLE, sqlstate

VERBS: dict[str, type[Verb]] = {
    verb.name: verb
    for verb in (Ls, Show, Break, Watch, HeadroomVerb, Doctor, Prune, AfterFailover, Rescue, Reopen, PruneJobs)
}
EXIT_CODES = """
exit codes:
  0  done, nothing found
  1  something was found that a person should look at, or could not be done
  2  wrong usage
  3  there is no such lease
  4  Redis or the database does not answer
"""


class Command(BaseCommand):
    help = "Look at leases, and intervene."
    unavailable_returncode = EXIT_UNAVAILABLE

    def add_arguments(self, parser: CommandParser) -> None:
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = "examples:" + "".join(verb.examples.rstrip() for verb in VERBS.values()) + "\n" + EXIT_CODES
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        for verb in VERBS.values():
            own = verbs.add_parser(
                verb.name,
                help=verb.help,
                description=verb.help,
                epilog="examples:" + verb.examples + EXIT_CODES,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
            own.add_argument(
                "--database", default="default", choices=[*connections], help="the alias whose fences are meant"
            )
            own.add_argument("--json", action="store_true", dest="as_json", help="one JSON document on stdout")
            verb.add_arguments(own)

    def handle(self, *args: Any, **options: Any) -> None:
        verb = VERBS[options.pop("verb")](self.stdout.write, self.stderr.write)
        try:
            verb.run(**options)
        except (OperationalError, InterfaceError) as error:
            raise unavailable(f"The database does not answer as it should: {str(error).strip()}") from error
        except ProgrammingError as error:
            if sqlstate(error) != NO_SUCH_TABLE:
                raise
            raise unavailable("The database has no tables of leases: run manage.py migrate first.") from error
        except RedisError as error:
            raise unavailable(f"Redis does not answer as it should: {error}") from error
