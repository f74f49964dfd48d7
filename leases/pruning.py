"""Deleting what is no longer needed, in batches that hold no lock for long.

Records and incidents are history. Fences are not: they are what makes tokens only go up.
"""

from collections.abc import Iterator
from datetime import timedelta

from django.db import connections, transaction

from leases import interventions
from leases.models import Intervention

# What deleting fences gives up; the command says so before it asks.
FENCES_GIVE_UP = (
    "A pruned fence no longer remembers its resource's token. Until now tokens only went up; afterwards the next one "
    "is as high as Redis' clock, and lower than before if that clock was ahead. A holder frozen since before is still "
    "refused, but receivers outside this database that compare tokens by order may refuse the next holder, or accept "
    "the old one. Prune only fences of resources that will not be leased again."
)

# The time is the statement's, since no index helps with a volatile one.
_RECORDS = """
DELETE FROM leases_leaserecord WHERE id = ANY(ARRAY(
  SELECT id FROM leases_leaserecord
   WHERE acquired_at < statement_timestamp() - %(age)s::interval
     AND ended_at < statement_timestamp() - %(age)s::interval
   ORDER BY acquired_at LIMIT %(batch_size)s FOR UPDATE SKIP LOCKED))
"""
_INCIDENTS = """
DELETE FROM leases_incident WHERE id = ANY(ARRAY(
  SELECT id FROM leases_incident WHERE seen_at < statement_timestamp() - %(age)s::interval
   ORDER BY seen_at LIMIT %(batch_size)s FOR UPDATE SKIP LOCKED))
"""
_FENCES = """
WITH gone AS (
  DELETE FROM leases_fence WHERE resource = ANY(ARRAY(
    SELECT f.resource FROM leases_fence f
     WHERE f.resource > %(after)s AND f.changed_at < statement_timestamp() - %(age)s::interval
       AND NOT EXISTS (SELECT FROM leases_leaserecord r WHERE r.resource = f.resource AND r.ended_at IS NULL)
     ORDER BY f.resource LIMIT %(batch_size)s FOR UPDATE SKIP LOCKED))
  RETURNING resource)
SELECT count(*), max(resource) FROM gone
"""
_COUNT = {
    "records": """
        SELECT count(*) FROM leases_leaserecord
         WHERE acquired_at < statement_timestamp() - %(age)s::interval
           AND ended_at < statement_timestamp() - %(age)s::interval""",
    "incidents": "SELECT count(*) FROM leases_incident WHERE seen_at < statement_timestamp() - %(age)s::interval",
    "fences": """
        SELECT count(*) FROM leases_fence f WHERE f.changed_at < statement_timestamp() - %(age)s::interval
           AND NOT EXISTS (SELECT FROM leases_leaserecord r WHERE r.resource = f.resource AND r.ended_at IS NULL)""",
}


def prune_records(*, older_than: timedelta, batch_size: int = 5000, using: str = "default") -> Iterator[int]:
    """Delete records of leases that ended longer ago than `older_than`; give the number of each batch."""
    yield from _in_batches(_RECORDS, older_than, batch_size, using)


def prune_incidents(*, older_than: timedelta, batch_size: int = 5000, using: str = "default") -> Iterator[int]:
    """Delete incidents seen longer ago than `older_than`; give the number of each batch."""
    yield from _in_batches(_INCIDENTS, older_than, batch_size, using)


def prune_fences(
    *, older_than: timedelta, reason: str, by: str, batch_size: int = 5000, using: str = "default"
) -> Iterator[int]:
    """Delete fences of resources not leased for `older_than`, on record; give the number of each batch.

    Read FENCES_GIVE_UP first. Raises ReasonMissing.
    """
    with transaction.atomic(using=using):
        interventions.record(Intervention.Action.PRUNE_FENCES, reason=reason, by=by, using=using)
    after = ""
    while True:
        with connections[using].cursor() as cursor:
            cursor.execute(
                _FENCES, {"age": f"{older_than.total_seconds()} seconds", "batch_size": batch_size, "after": after}
            )
            count, last = cursor.fetchone()
        if not count:
            return
        after = last
        yield count


def count(what: str, *, older_than: timedelta, using: str = "default") -> int:
    """Return how many `records`, `incidents` or `fences` would be pruned."""
    with connections[using].cursor() as cursor:
        cursor.execute(_COUNT[what], {"age": f"{older_than.total_seconds()} seconds"})
        return int(cursor.fetchone()[0])


def _in_batches(statement: str, older_than: timedelta, batch_size: int, using: str) -> Iterator[int]:
    while True:
        with connections[using].cursor() as cursor:
            cursor.execute(statement, {"age": f"{older_than.total_seconds()} seconds", "batch_size": batch_size})
            deleted = cursor.rowcount
        if not deleted:
            return
        yield deleted
