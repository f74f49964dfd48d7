"""Noticing a database that forgot what it had promised, and putting it right.

A replica that was promoted before it had everything, and a backup restored to an earlier moment, have lost fences:
a holder that was replaced could write again. The first changes the timeline. The second changes the system identifier,
or, on the same server, the oid of the table it makes anew, or that of the database if it was copied as a template. All
are stored here and compared on every new connection. After a change nothing is leased until every fence was raised
above whatever any holder may still present.
"""

import logging
import time
import weakref
from typing import Any

from django.db import connections, transaction

from leases import fence, interventions
from leases.errors import DatabaseForgot, identity
from leases.models import Intervention

logger = logging.getLogger("leases")

#: Behind a pooler one connection outlives its server, so it is asked again from time to time.
_ASK_AGAIN_AFTER_S = 10.0

# The timeline is read from the write-ahead log: pg_control_checkpoint() lags behind after a promotion.
_FOUND = """
SELECT (SELECT system_identifier FROM pg_control_system())::text,
       ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int,
       (SELECT oid FROM pg_database WHERE datname = current_database())::bigint,
       'leases_databaseidentity'::regclass::oid::bigint
"""
_STORED = "SELECT system_identifier, timeline, database_oid, table_oid FROM leases_databaseidentity WHERE id = 1"
_STORE = """
INSERT INTO leases_databaseidentity AS i (id, system_identifier, timeline, database_oid, table_oid, stored_at)
VALUES (1, %s, %s, %s, %s, clock_timestamp())
ON CONFLICT (id) DO UPDATE SET system_identifier = excluded.system_identifier, timeline = excluded.timeline,
                               database_oid = excluded.database_oid, table_oid = excluded.table_oid,
                               stored_at = excluded.stored_at
 WHERE %s
"""
# Above every token that Redis, whose tokens are its clock in microseconds, can have granted until now.
_RAISE = """
UPDATE leases_fence SET holder = '', changed_at = clock_timestamp(),
       token = greatest(token + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
"""
_END = """
UPDATE leases_leaserecord SET ended_at = clock_timestamp(), "end" = 'broken' WHERE ended_at IS NULL
"""

_asked: "weakref.WeakKeyDictionary[Any, float]" = weakref.WeakKeyDictionary()


def verify(using: str) -> None:
    """Return if the database is the one that made the promises; raise DatabaseForgot if it may have lost some.

    Asked once per connection and then every 10 s; the first database ever seen is stored as the one.
    """
    wrapper = connections[using]
    wrapper.ensure_connection()
    asked = _asked.get(wrapper.connection)
    if asked is not None and time.monotonic() - asked < _ASK_AGAIN_AFTER_S:
        return
    with wrapper.cursor() as cursor:
        cursor.execute(_FOUND)
        found = cursor.fetchone()
        cursor.execute(_STORED)
        stored = cursor.fetchone()
        if stored is None:
            cursor.execute(_STORE, [*found, False])
        elif stored != found:
            raise DatabaseForgot(using=using, stored=stored, found=found)
    _asked[wrapper.connection] = time.monotonic()


def put_right(using: str, *, nothing_lost: bool = False, dry_run: bool = False) -> int:
    """Raise every fence so that no holder of before can write, and accept the database as it is; return how many.

    With `nothing_lost`, after a failover to a synchronous standby, only the database's new identity is stored. With
    `dry_run` nothing is changed.
    """
    raised = 0
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        if not nothing_lost:
            fence.refuse_shadow(using)
            cursor.execute(_RAISE)
            raised = cursor.rowcount
            cursor.execute(_END)
        cursor.execute(_FOUND)
        found = cursor.fetchone()
        cursor.execute(_STORE, [*found, True])
        interventions.record(
            Intervention.Action.RAISE_FENCES,
            reason=f"accepted {identity(found)}" + (", nothing lost" if nothing_lost else ""),
            by=interventions.operator(),
            using=using,
        )
        transaction.set_rollback(dry_run, using=using)
    if dry_run:
        return raised
    logger.warning(
        "Accepted %s; raised %d fences.",
        identity(found),
        raised,
        extra={"event": "fences.raised", "fences": raised},
    )
    return raised
