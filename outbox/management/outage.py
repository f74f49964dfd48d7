"""A database that does not answer, or has no outbox in it, said by the commands in one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import CommandError
from django.db import InterfaceError, InternalError, OperationalError, ProgrammingError, connections

EXIT_DATABASE_LOST = 75  # EX_TEMPFAIL of sysexits.h
NO_SUCH_TABLE = "42P01"
NO_PERMISSION = "42501"


def known(using: str) -> str:
    """The alias, if DATABASES has it."""
    if using not in connections:
        raise CommandError(f"there is no database {using!r} in DATABASES", returncode=2)
    return using


@contextmanager
def told() -> Iterator[None]:
    """End the command with one sentence where the database is away, only reads, was never migrated, or refuses it."""
    try:
        yield
    except (OperationalError, InterfaceError, InternalError) as error:
        raise CommandError(
            f"the database does not answer as it should ({_cause(error)}); what was said to be done is done, run it "
            f"again for the rest",
            returncode=EXIT_DATABASE_LOST,
        ) from error
    except ProgrammingError as error:
        sqlstate = getattr(error.__cause__, "sqlstate", None)
        if sqlstate == NO_PERMISSION:
            raise CommandError(
                f"the database refuses this to its role ({_cause(error)}): run it as the role that owns the tables, or "
                f"grant what is missing (of tables SELECT, INSERT, UPDATE, DELETE; of sequences USAGE, UPDATE)"
            ) from error
        if sqlstate != NO_SUCH_TABLE:
            raise
        raise CommandError(f"the outbox has no tables here ({_cause(error)}): run manage.py migrate first") from error


def _cause(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
