"""Rows of a CSV file, one at a time; a row that cannot be read is refused and the next one follows."""

import csv
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from billing.imports.fields import Refused, is_text

if TYPE_CHECKING:
    from _csv import Reader


_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


class UnreadableFile(Exception):
    """The file as a whole cannot be imported; nothing was taken from it."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path} cannot be imported: {reason}. Nothing was taken.")


@contextmanager
def opened(path: str) -> Iterator[TextIO]:
    """Open a CSV file ('-': standard input) as UTF-8; other bytes become surrogates, so only their row is refused."""
    try:
        file = sys.stdin.fileno() if path == "-" else path
        stream = open(file, encoding="utf-8-sig", errors="surrogateescape", newline="", closefd=path != "-")  # noqa: SIM115
    except OSError as error:
        raise UnreadableFile(path, error.strerror or str(error)) from error
    with stream:
        yield stream


def rows(
    stream: TextIO, path: str, required: Iterable[str]
) -> tuple[list[str], Iterator[tuple[int, dict[str, str] | Refused]]]:
    """Return the columns, and an iterator of (line, values by column) or of the reason why a row cannot be read.

    Blank lines are passed over. The line is the one on which the row begins, as an editor counts: a quoted value may
    hold line breaks.

    Raises `UnreadableFile` at once when the header is missing, or lacks or repeats a column.
    """
    reader = csv.reader(stream)
    try:
        header = [name.strip() for name in next(reader)]
    except StopIteration:
        raise UnreadableFile(path, "it is empty") from None
    except csv.Error as error:
        raise UnreadableFile(path, f"its header is no CSV ({error})") from error
    if missing := [name for name in required if name not in header]:
        raise UnreadableFile(path, f"its header has no column {', '.join(missing)}{_likely_why(header)}")
    named = [name for name in header if name]  # spreadsheets leave columns without a name at the end
    if len(set(named)) < len(named):
        raise UnreadableFile(path, "its header names a column twice")
    return header, _rows(reader, header)


def _likely_why(header: list[str]) -> str:
    """Return what a header that lacks columns looks like, if it looks like what other programs save."""
    first = header[0] if header else ""
    if any("\0" in name or not is_text(name) for name in header):
        return "; it is not in UTF-8: save it as CSV UTF-8"
    for separator, name in _OTHER_SEPARATORS.items():
        if separator in first:
            return f"; its columns seem to be separated by {name}: save it with commas"
    return ""


def _rows(reader: "Reader", header: list[str]) -> Iterator[tuple[int, dict[str, str] | Refused]]:
    while True:
        line = reader.line_num + 1
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield line, Refused(f"no CSV ({error})")
            continue
        if not values:
            continue
        if len(values) != len(header):
            yield line, Refused(f"has {len(values)} values, the header has {len(header)} columns")
        elif any("\0" in value or not is_text(value) for value in values):
            yield line, Refused("contains bytes that are not UTF-8 text")
        else:
            yield line, dict(zip(header, values, strict=True))
