"""Clearing the way of a registration that waits for the former holder's transaction.

A holder that was frozen inside a transaction keeps its fence row locked. Its own limits end that after 2 s, or ttl/3;
a connection whose process is frozen in the middle of reading a result is not idle, and only this ends it.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections

from leases.errands import errands

logger = logging.getLogger("leases")

#: How long a registration waits by itself before it looks at who is in the way.
PATIENCE_MS = 250
_LOOK_EVERY_S = 0.1

# Never an active one: that may be a rival registration, or a commit. Never one that keeps a whole table, as a migration
# does: a former holder keeps a row. And only while the one that waits is at the fence: behind a pooler that number may
# serve somebody else by now, in whose way others may stand as long as they like.
_TERMINATE = r"""
SELECT b.pid, pg_terminate_backend(b.pid)
  FROM pg_stat_activity w JOIN pg_stat_activity b ON b.pid = ANY(pg_blocking_pids(w.pid))
 WHERE w.pid = %(waiting)s AND w.query ~ 'leases_register\(|INSERT INTO leases_fence'
   AND w.wait_event IN ('transactionid', 'tuple')
   AND b.state_change < clock_timestamp() - make_interval(secs => %(patience_s)s)
   AND (b.state IN ('idle in transaction', 'idle in transaction (aborted)')
        OR b.wait_event_type = 'Client' AND b.wait_event = 'ClientWrite')
"""


@contextmanager
def being_cleared(using: str) -> Iterator[None]:
    """While the body waits on `using`, terminate those in its way that are idle in transaction or stuck writing."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        waiting: int = cursor.fetchone()[0]
    done = threading.Event()

    def clear() -> None:
        while not done.wait(_LOOK_EVERY_S):
            with connections[using].cursor() as cursor:
                cursor.execute(_TERMINATE, {"waiting": waiting, "patience_s": PATIENCE_MS / 1000})
                for pid, _ in cursor.fetchall():
                    logger.warning(
                        "Ended database connection %d: it held up a new holder from inside an idle transaction.",
                        pid,
                        extra={"event": "lease.blocker_ended", "pid": pid},
                    )

    errands.run(
        clear,
        failed="Idle transactions in the way of a new holder were not ended; who asks for the lease next tries again.",
    )
    try:
        yield
    finally:
        done.set()
