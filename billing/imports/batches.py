"""Inserting what is new, and telling a repeat from a conflict."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import connections, models
from psycopg import sql

from billing.imports.report import Verdict

Record = Mapping[str, Any]


def insert_new(
    model: type[models.Model], records: Sequence[Record], *, key: Sequence[str], compared: Sequence[str], using: str
) -> list[Verdict]:
    """Insert the records whose key is not there yet, in one statement, and return a verdict per record, in order.

    `key` are the columns of a unique constraint, `compared` those whose values make a repeat; columns are named as in
    the database. A record that repeats an earlier one of the same call is judged against that one. Existing rows are
    never changed.
    """
    first: dict[tuple[Any, ...], Record] = {}
    for record in records:
        first.setdefault(_of(record, key), record)
    # Always in the order of the keys, so that two imports of one file cannot deadlock.
    inserted = _insert(model, [first[at] for at in sorted(first)], key, using)
    stored = _stored(model, list(first), key, compared, using) if len(inserted) < len(records) else {}
    verdicts = []
    for record in records:
        at = _of(record, key)
        if at in inserted and first[at] is record:
            verdicts.append(Verdict.TAKEN)
        else:
            verdicts.append(Verdict.KNOWN if stored[at] == _of(record, compared) else Verdict.CONFLICTING)
    return verdicts


def _of(record: Record, columns: Sequence[str]) -> tuple[Any, ...]:
    return tuple(record[column] for column in columns)


def _insert(
    model: type[models.Model], records: Sequence[Record], key: Sequence[str], using: str
) -> set[tuple[Any, ...]]:
    columns = list(records[0])
    statement = sql.SQL(
        "INSERT INTO {table} ({columns}) SELECT * FROM unnest({arrays}) ON CONFLICT ({key}) DO NOTHING RETURNING {key}"
    ).format(
        table=sql.Identifier(model._meta.db_table),
        columns=_identifiers(columns),
        arrays=_arrays(model, columns, using),
        key=_identifiers(key),
    )
    with connections[using].cursor() as cursor:
        cursor.execute(statement, [[record[column] for record in records] for column in columns])
        return set(cursor.fetchall())


def _stored(
    model: type[models.Model], keys: Sequence[tuple[Any, ...]], key: Sequence[str], compared: Sequence[str], using: str
) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    statement = sql.SQL(
        "SELECT {key}, {compared} FROM {table} WHERE ({key}) IN (SELECT * FROM unnest({arrays}))"
    ).format(
        table=sql.Identifier(model._meta.db_table),
        key=_identifiers(key),
        compared=_identifiers(compared),
        arrays=_arrays(model, key, using),
    )
    with connections[using].cursor() as cursor:
        cursor.execute(statement, [list(column) for column in zip(*keys, strict=True)])
        return {row[: len(key)]: row[len(key) :] for row in cursor.fetchall()}


def _identifiers(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))


def _arrays(model: type[models.Model], columns: Sequence[str], using: str) -> sql.Composed:
    types = {field.column: field.db_type(connections[using]) for field in model._meta.concrete_fields}
    return sql.SQL(", ").join(sql.SQL(f"%s::{types[column]}[]") for column in columns)
