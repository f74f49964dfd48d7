"""The loop of every import: read, parse, store in batches, report."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Protocol, TextIO, TypeVar

from django.db import DataError, IntegrityError, router, transaction

from billing.imports import reading
from billing.imports.fields import Refused
from billing.imports.report import Report, Verdict
from billing.models import UsageEvent

BATCH_ROWS = 2000

Row = TypeVar("Row")


class Importer(Protocol[Row]):
    """How the rows of one kind of file are parsed and stored."""

    required_columns: Sequence[str]

    def parse(self, row: dict[str, str]) -> Row:
        """Return what a row means, from its own text alone; raise `Refused`."""

    def store(self, batch: Sequence[Row], using: str) -> Sequence[Verdict | Refused]:
        """Store what is new, inside a transaction, and return what became of each row, in order."""


def import_file(importer: Importer[Row], stream: TextIO, path: str, report: Report, *, dry_run: bool = False) -> None:
    """Take every good row of a file and report the others; a second time everything is `known`.

    Each batch is one transaction, so an import that was interrupted is finished by running it again. A dry run is one
    transaction that is rolled back. Raises `UnreadableFile` when the header is wrong.
    """
    using = router.db_for_write(UsageEvent)
    numbered = reading.rows(stream, path, importer.required_columns)
    with transaction.atomic(using) if dry_run else nullcontext():
        for batch in _batches(importer, numbered, report):
            _store(importer, batch, report, using)
        if dry_run:
            transaction.set_rollback(True, using)


def _batches(
    importer: Importer[Row], numbered: Iterator[tuple[int, dict[str, str] | Refused]], report: Report
) -> Iterator[list[tuple[int, Row]]]:
    while chunk := list(islice(numbered, BATCH_ROWS)):
        batch = []
        for number, row in chunk:
            try:
                if isinstance(row, Refused):
                    raise row
                batch.append((number, importer.parse(row)))
            except Refused as refused:
                report.add(number, Verdict.REFUSED, str(refused))
        if batch:
            yield batch


def _store(importer: Importer[Row], batch: list[tuple[int, Row]], report: Report, using: str) -> None:
    try:
        with transaction.atomic(using):
            verdicts = importer.store([row for _, row in batch], using)
    except (DataError, IntegrityError) as error:
        if len(batch) > 1:  # one of them is at fault; the others must not suffer
            for one in batch:
                _store(importer, [one], report, using)
            return
        verdicts = [Refused(f"the database refused it: {str(error).splitlines()[0]}")]
    for (number, row), verdict in zip(batch, verdicts, strict=True):
        if isinstance(verdict, Refused):
            report.add(number, Verdict.REFUSED, str(verdict))
        else:
            report.add(number, verdict, f"{row} is there with other content, which stays")
