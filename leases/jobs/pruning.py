"""Deleting the history of jobs that nobody needs any more, in batches that hold no lock for long."""

from collections.abc import Iterator
from datetime import timedelta

from django.db import connections

# What may go: a receipt when its actor's retention says so and never otherwise; a slot when it is old and a later one
# of its schedule is there, from which the scheduler counts on; a dead letter when it was replayed long ago.
WHAT = {
    "receipts": ("leases_receipt", "t.expires_at < clock_timestamp() AND t.state = 'done'"),
    "slots": (
        "leases_slot",
        "t.due_at < clock_timestamp() - %(age)s::interval AND t.state <> 'due' AND EXISTS"
        " (SELECT FROM leases_slot later WHERE later.schedule = t.schedule AND later.due_at > t.due_at)",
    ),
    "dead letters": ("leases_deadletter", "t.replayed_at < clock_timestamp() - %(age)s::interval"),
}


def prune(what: str, *, older_than: timedelta, batch_size: int = 5000, using: str = "default") -> Iterator[int]:
    """Delete one of WHAT; give the number of each batch."""
    table, condition = WHAT[what]
    while True:
        with connections[using].cursor() as cursor:
            cursor.execute(
                f"DELETE FROM {table} WHERE id = ANY(ARRAY(SELECT t.id FROM {table} t WHERE {condition}"  # noqa: S608 - constants
                " LIMIT %(batch_size)s FOR UPDATE OF t SKIP LOCKED))",
                {"age": f"{older_than.total_seconds()} s", "batch_size": batch_size},
            )
            deleted = cursor.rowcount
        if not deleted:
            return
        yield deleted


def count(what: str, *, older_than: timedelta, using: str = "default") -> int:
    """Return how many of one of WHAT would be pruned."""
    table, condition = WHAT[what]
    with connections[using].cursor() as cursor:
        cursor.execute(
            f"SELECT count(*) FROM {table} t WHERE {condition}",  # noqa: S608 - constants
            {"age": f"{older_than.total_seconds()} s"},
        )
        return int(cursor.fetchone()[0])
