"""A database that does not answer, or has no outbox in it, said by the commands in one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import CommandError
from django.db import InterfaceError, InternalError, OperationalError, ProgrammingError, connections

EXIT_DATABASE_LOST = 75  # EX_TEMPFAIL of sysexits.h
NO_SUCH_TABLE = "42P01"


def known(using: str) -> str:
    """The alias, if DATABASES has it."""
    if using not in connections:
        raise CommandError(f"there is no database {using!r} in DATABASES", returncode=2)
    return using


@contextmanager
def told() -> Iterator[None]:
    """End the command with one sentence where the database is away, or only reads, or was never migrated."""
    try:
        yield
    except (OperationalError, InterfaceError, InternalError) as error:
        raise CommandError(
            f"the database does not answer as it should ({_cause(error)}); what was said to be done is done, run it "
            f"again for the rest",
            returncode=EXIT_DATABASE_LOST,
        ) from error
    except ProgrammingError as error:
        if getattr(error.__cause__, "sqlstate", None) != NO_SUCH_TABLE:
            raise
        raise CommandError(f"the outbox has no tables here ({_cause(error)}): run manage.py migrate first") from error


def _cause(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
