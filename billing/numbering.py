"""Gapless document numbers."""

from django.db import connections
from django.db.models import Subquery
from django.db.models.functions import Greatest, Now

from billing.models import CreditNote, Invoice

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


def dated(model: type[Invoice] | type[CreditNote], series: str, number: int) -> Greatest:
    """Return now, but no earlier than the document numbered before: a clock that stepped back must not show in them.

    For a statement of its own after `take_number()`, which may have waited for that document.
    """
    # Not the one of number - 1: after a failover a person skips the numbers that are lost.
    before = model.objects.filter(series=series, number__lt=number).order_by("-number")
    return Greatest(Now(), Subquery(before.values("issued_at")[:1]))
