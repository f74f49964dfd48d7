"""Gapless document numbers."""

from django.db import connections

_TAKE = """
INSERT INTO billing_series AS s (name, next_number) VALUES (%s, 2)
ON CONFLICT (name) DO UPDATE SET next_number = s.next_number + 1
RETURNING next_number - 1
"""


def take_number(series: str, *, using: str) -> int:
    """Return the next number of the series, in the caller's transaction, and keep the series locked until its end.

    A rollback gives the number back, so there are no gaps; and everybody else who numbers waits meanwhile, so this is
    one of the last statements of a transaction, never one before rating or tax.
    """
    with connections[using].cursor() as cursor:
        cursor.execute(_TAKE, [series])
        return int(cursor.fetchone()[0])
