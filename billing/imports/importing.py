"""The loop of every import: read, parse, store in batches, report."""

from collections.abc import Sequence
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
    #: The others that it reads; None where the layout has many more that mean nothing here.
    optional_columns: Sequence[str] | None

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
    columns, numbered = reading.rows(stream, path, importer.required_columns)
    if importer.optional_columns is not None:
        known = {*importer.required_columns, *importer.optional_columns}
        report.ignored_columns = [name for name in columns if name and name not in known]
    with transaction.atomic(using) if dry_run else nullcontext():
        while chunk := list(islice(numbered, BATCH_ROWS)):
            _take(importer, chunk, report, using)
        if dry_run:
            transaction.set_rollback(True, using)


def _take(
    importer: Importer[Row], chunk: list[tuple[int, dict[str, str] | Refused]], report: Report, using: str
) -> None:
    """Store the good rows of the chunk, and report all of it in the order of the file."""
    refused: dict[int, Refused] = {}
    batch: list[Row] = []
    for line, row in chunk:
        try:
            if isinstance(row, Refused):
                raise row
            batch.append(importer.parse(row))
        except Refused as error:
            refused[line] = error
    became = zip(batch, _stored(importer, batch, using), strict=True)
    for line, _ in chunk:
        if line in refused:
            report.add(line, Verdict.REFUSED, str(refused[line]))
            continue
        taken, verdict = next(became)
        if isinstance(verdict, Refused):
            report.add(line, Verdict.REFUSED, str(verdict))
        else:
            report.add(line, verdict, f"{taken} is there with other content, which stays")


def _stored(importer: Importer[Row], batch: list[Row], using: str) -> Sequence[Verdict | Refused]:
    if not batch:
        return []
    try:
        with transaction.atomic(using):
            return importer.store(batch, using)
    except (DataError, IntegrityError) as error:
        if len(batch) > 1:  # one of them is at fault; the others must not suffer
            return [verdict for row in batch for verdict in _stored(importer, [row], using)]
        return [Refused(f"the database refused it: {str(error).splitlines()[0]}")]
