"""A database that does not answer, said in one sentence by the commands."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.core.management.base import CommandError
from django.db import InterfaceError, InternalError, OperationalError, ProgrammingError

#: What Django raises when the database is away, was restarted or promoted, or only reads. InternalError: it only reads.
OUTAGE = (OperationalError, InterfaceError, InternalError)

NO_SUCH_TABLE = "42P01"


@contextmanager
def told(advice: str | Callable[[], str], *, returncode: int = 1) -> Iterator[None]:
    """Let an outage, or tables that were never made, end a command with one sentence and `returncode`.

    `advice` says what was done and what to do, in sentences of its own, or returns them then.
    """
    try:
        yield
    except OUTAGE as error:
        advised = advice if isinstance(advice, str) else advice()
        raise CommandError(f"{sentence(error)} {advised}", returncode=returncode) from error
    except ProgrammingError as error:
        if not _lacks_table(error):
            raise
        said = cause(error)
        raise CommandError(f"{said[0].upper()}{said[1:]}.", returncode=returncode) from error


def sentence(error: Exception) -> str:
    """Return what happened, as one sentence."""
    return f"The database does not answer as it should ({cause(error)})."


def cause(error: Exception) -> str:
    """Return the first line of what the database or its driver said; of tables that were never made, what to do."""
    said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return f"the database lacks a table ({said}): run manage.py migrate first" if _lacks_table(error) else said


def _lacks_table(error: Exception) -> bool:
    return getattr(error.__cause__, "sqlstate", None) == NO_SUCH_TABLE
