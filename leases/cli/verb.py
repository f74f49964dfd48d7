"""What every verb of `manage.py leases` is made of."""

import argparse
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from django.core.management.base import CommandError
from django.core.serializers.json import DjangoJSONEncoder

from leases.errors import InvalidResource
from leases.resources import validated

#: The verb found something that a person should look at.
EXIT_FOUND = 1
#: There is no such lease.
EXIT_ABSENT = 3
#: Redis or the database did not answer.
EXIT_UNAVAILABLE = 4

# PostgreSQL's calendar begins in 4714 BC.
_LONGEST = timedelta(days=365_250)
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Verb(ABC):
    """One verb: its arguments, and what it does; `write` prints one line on stdout, `warn` on stderr."""

    name: ClassVar[str]
    help: ClassVar[str]
    examples: ClassVar[str]

    def __init__(self, write: Callable[[str], object], warn: Callable[[str], object]) -> None:
        self.write: Callable[[str], object] = lambda line: write(_printable(line))
        self.warn: Callable[[str], object] = lambda line: warn(_printable(line))

    @classmethod
    @abstractmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """Declare the verb's arguments; `--database` and `--json` are there already."""

    @abstractmethod
    def run(self, *, database: str, as_json: bool, **options: Any) -> None:
        """Do it; raise SystemExit or CommandError for any exit code but 0."""

    def write_json(self, value: object) -> None:
        self.write(json.dumps(value, cls=DjangoJSONEncoder))

    def write_table(self, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print rows in columns as wide as their widest cell."""
        cells = [list(headings), *([str(cell) for cell in row] for row in rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
        for row in cells:
            self.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _printable(line: str) -> str:
    """Return the line with what moves a cursor or begins another line spelled out; names may hold any character."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)


def duration(text: str) -> timedelta:
    """Read `90s`, `12h` or `30d` from the command line."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    try:
        value = timedelta(**{_UNITS[text.removeprefix(number)]: float(number)})
    except (KeyError, ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no duration: write a number and a unit, as in 90s, 12h or 30d"
        ) from None
    if not timedelta(0) < value <= _LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not more than nothing, and a thousand years at most")
    return value


def resource(text: str) -> str:
    """Read the name of a resource from the command line."""
    try:
        return validated(text)
    except InvalidResource as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive(text: str) -> int:
    """Read a whole number above zero from the command line."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def natural(text: str) -> int:
    """Read a whole number, zero or more, from the command line."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def positive_seconds(text: str) -> float:
    """Read a number of seconds above zero, at most a week, from the command line."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 7 * 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above zero, a week at most")
    return value


def counted(count: int, noun: str) -> str:
    """Return the count with its noun, in the plural unless there is one: `1 lease`, `2 leases`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def seconds(value: timedelta | None) -> float | None:
    """Return a duration as a number of seconds, for machines."""
    return None if value is None else round(value.total_seconds(), 3)


def unavailable(what: str) -> CommandError:
    return CommandError(what, returncode=EXIT_UNAVAILABLE)
