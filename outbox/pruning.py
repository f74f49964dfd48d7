"""Forgetting what old messages said."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.db import connections

from outbox.statements import statement


def prune(using: str, *, older_than: timedelta, batch_size: int = 1000) -> Iterator[int]:
    """Empty the payload of messages sent longer than `older_than` ago, or cancelled (whenever that was) and published
    longer ago; yields the size of each batch.

    Each batch is a transaction of its own, and waits for nobody. The dedupe_key, the digest and the outcome stay for
    ever, so that publishing the same again is still recognised.
    """
    after = 0
    while True:
        values: dict[str, Any] = {"after": after, "age": older_than, "limit": batch_size}
        with connections[using].cursor() as cursor:
            cursor.execute(statement("prune"), values)
            ids = [row[0] for row in cursor.fetchall()]
        if not ids:
            return
        after = max(ids)
        yield len(ids)
