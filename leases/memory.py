"""Whether Redis still remembers what it was told.

FLUSHALL, eviction, a restart without persistence and a failover to a replica that lags all lose leases, ten thousand at
once. Two signs show it: the server's run_id, which a flush keeps, and a marker key, which a failover keeps.
"""

import secrets
from dataclasses import dataclass
from datetime import datetime

from django.db import connections
from django_redis import get_redis_connection

from leases.conf import conf

MARKER_KEY = "leases:memory"

_KNOWN = "SELECT run_id, marker FROM leases_redismemory WHERE alias = %(alias)s"
_FIRST = """
INSERT INTO leases_redismemory (alias, run_id, marker, lost_at) VALUES (%(alias)s, %(run_id)s, %(marker)s, NULL)
ON CONFLICT (alias) DO NOTHING
"""
_CHANGED = """
UPDATE leases_redismemory SET run_id = %(run_id)s, marker = %(marker)s, lost_at = clock_timestamp()
 WHERE alias = %(alias)s AND run_id = %(known_run_id)s AND marker = %(known_marker)s
RETURNING lost_at
"""
# A key that a loss took is missed within its ttl. What is found later has another reason: a holder that put its key
# back, and froze an hour after, is no victim of that loss.
_FORGOT = """
SELECT EXISTS (
  SELECT FROM leases_redismemory m JOIN leases_leaserecord r ON r.acquired_at < m.lost_at
     AND clock_timestamp() < m.lost_at + make_interval(secs => 10 + r.ttl_ms / 500.0)
   WHERE m.alias = %(alias)s AND r.resource = %(resource)s AND r.token = %(token)s)
"""


@dataclass(frozen=True, slots=True)
class Loss:
    """One loss of memory; `flushed` is False if only the server is another one, which may lack what came last."""

    lost_at: datetime
    flushed: bool


def look(using: str) -> Loss | None:
    """Compare Redis with what the database knows of it; of all who notice a loss, one is told.

    What is known is read first, then Redis is asked, then the knowledge is replaced only if it is still what was read:
    in another order somebody who was frozen in between would report a loss that never was. Raises redis.RedisError.
    """
    alias = conf.REDIS_ALIAS
    with connections[using].cursor() as cursor:
        cursor.execute(_KNOWN, {"alias": alias})
        known = cursor.fetchone()
        run_id, marker = _ask(secrets.token_hex(16))
        now = {"alias": alias, "run_id": run_id, "marker": marker}
        if known is None:
            cursor.execute(_FIRST, now)
        elif known != (run_id, marker):
            cursor.execute(_CHANGED, {**now, "known_run_id": known[0], "known_marker": known[1]})
            changed = cursor.fetchone()
            if changed:
                return Loss(changed[0], flushed=known[1] != marker)
    return None


def is_watched(using: str) -> bool:
    """Say whether anybody has ever looked; without that a loss cannot be told from a first start."""
    with connections[using].cursor() as cursor:
        cursor.execute(_KNOWN, {"alias": conf.REDIS_ALIAS})
        return cursor.fetchone() is not None


def was_lost_during(resource: str, token: int, *, using: str) -> bool:
    """Say whether Redis lost its memory after this lease was granted, and so lately that this took its key."""
    with connections[using].cursor() as cursor:
        cursor.execute(_FORGOT, {"alias": conf.REDIS_ALIAS, "resource": resource, "token": token})
        return bool(cursor.fetchone()[0])


def _ask(new_marker: str) -> tuple[str, str]:
    pipeline = get_redis_connection(conf.REDIS_ALIAS, write=True).pipeline(transaction=False)
    pipeline.set(MARKER_KEY, new_marker, nx=True, get=True)
    pipeline.info("server")
    old_marker, server = pipeline.execute()
    marker = new_marker if old_marker is None else old_marker
    return str(server["run_id"]), marker.decode() if isinstance(marker, bytes) else str(marker)
