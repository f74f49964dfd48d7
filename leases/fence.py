"""The database side of a lease: register a token, present it, record the lease's end.

PostgreSQL decides. The fence row of a resource holds its current token; registering a newer one makes every older
holder stale at that moment, and presenting proves a token inside the transaction that writes under it.
"""

import select
from dataclasses import dataclass
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.pq import TransactionStatus

from leases.errors import FenceMissing, StaleToken, TableShadowed
from leases.process import ProcessIdentity

#: The trigger's SQLSTATE for a row whose resource was not presented in this transaction.
NOT_PRESENTED = "LF002"
#: The trigger's SQLSTATE for a token that was presented on another fence than the one in the row's own schema.
OTHER_FENCE = "LF003"
LOCK_NOT_AVAILABLE = "55P03"
QUERY_CANCELED = "57014"
NO_SUCH_TABLE = "42P01"

_IN_TRANSACTION = (TransactionStatus.ACTIVE, TransactionStatus.INTRANS, TransactionStatus.INERROR)

_SHADOW = """
SELECT c.relname, c.relnamespace::regnamespace::text FROM pg_catalog.pg_class c
 WHERE c.oid = ANY(%s::text[]::regclass[]) AND c.relpersistence = 't'
"""

_REGISTER = """
SELECT * FROM leases_register(
  %(resource)s, %(token)s, %(holder)s, %(ttl_ms)s, %(host)s, %(pid)s, %(started)s, %(thread)s, %(lock_timeout)s)
"""
PRESENT = "SELECT leases_present(%(resource)s, %(token)s, %(limit)s)"

_SEES_NOTHING_SINCE = """
SELECT current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
   AND clock_timestamp() - transaction_timestamp() > make_interval(secs => %(age_s)s)
   AND NOT EXISTS (SELECT FROM leases_leaserecord WHERE resource = %(resource)s AND token = %(token)s)
"""
_PLACE = """
SELECT format('leases:%%s:%%s/%%s/%%s', %(what)s, system_identifier,
              (SELECT oid FROM pg_database WHERE datname = current_database()), 'leases_fence'::regclass::oid)
  FROM pg_control_system()
"""
_RELEASE = "SELECT leases_release(%(resource)s, %(token)s)"
#: Ends a lease for any other reason than its release; the first end stays.
END = """
UPDATE leases_leaserecord SET ended_at = clock_timestamp(), "end" = %(end)s
 WHERE resource = %(resource)s AND token = %(token)s AND ended_at IS NULL
"""


@dataclass(frozen=True, slots=True)
class Unreleased:
    """An earlier lease of the same resource that never ended: its holder crashed, or is running still."""

    token: int
    holder: str
    process: ProcessIdentity


class Refused(Exception):
    """The fence already holds a token that is not smaller; ask for one above `stored`."""

    def __init__(self, stored: int) -> None:
        self.stored = stored


@dataclass(frozen=True, slots=True)
class Registration:
    """What is written when a lease begins: the fence's new token, and the lease's record."""

    resource: str
    token: int
    holder: str
    ttl_ms: int
    process: ProcessIdentity
    thread: str


def register(registration: Registration, *, lock_timeout_ms: int, using: str) -> list[Unreleased]:
    """Make the token the fence's current one and write the lease's record, in one statement of its own.

    Accepted where the stored token is strictly smaller, or where token and holder are already these (the reply was
    lost). Returns the earlier leases that were never released. Raises Refused, TableShadowed, or
    django.db.DatabaseError; SQLSTATE 55P03 means that a transaction of the former holder was still open after
    `lock_timeout_ms`.
    """
    with connections[using].cursor() as cursor:
        cursor.execute(
            _REGISTER,
            {
                "lock_timeout": f"{lock_timeout_ms}ms",
                "resource": registration.resource,
                "token": registration.token,
                "holder": registration.holder,
                "ttl_ms": registration.ttl_ms,
                "host": registration.process.host,
                "pid": registration.process.pid,
                "started": registration.process.started,
                "thread": registration.thread.replace("\0", "")[:255],
            },
        )
        rows = cursor.fetchall()
    if not rows:
        raise Refused(current(registration.resource, using=using) or 0)
    return [
        Unreleased(token, holder, ProcessIdentity(host, pid, started))
        for token, holder, host, pid, started in rows
        if token is not None
    ]


def present(resource: str, token: int, *, ttl_ms: int, using: str) -> None:
    """Prove inside the open transaction on `using` that `token` is current, and keep it so until the commit.

    The fence row stays locked FOR SHARE: a plain SELECT, or a foreign key's lock, would let a stale transaction commit
    after a newer one. The transaction is also bounded, so that a process frozen inside it holds up its successor for
    2 s, or ttl/3 if that is shorter, and no longer.

    Raises StaleToken when the fence is beyond `token`, FenceMissing when it is below it, and TableShadowed.
    """
    connection = connections[using]
    with connection.cursor() as cursor:
        cursor.execute(PRESENT, {"limit": f"{limit_ms(ttl_ms)}ms", "resource": resource, "token": token})
        if cursor.fetchone()[0]:
            return
    stored = current(resource, using=using)
    if stored is None or stored <= token:
        raise FenceMissing(resource, token=token, current=stored)
    raise StaleToken(resource, token=token, current=stored)


def sees_nothing_since(lease_age_s: float, resource: str, token: int, *, using: str) -> bool:
    """Say whether the open transaction is older than a lease and, at its isolation level, does not see its record.

    The age alone is measured by two clocks at two moments, so a transaction that began right after the lease may seem
    older; the record alone would be missing too from a database that lost it.
    """
    with connections[using].cursor() as cursor:
        cursor.execute(_SEES_NOTHING_SINCE, {"age_s": lease_age_s, "resource": resource, "token": token})
        return bool(cursor.fetchone()[0])


def current(resource: str, *, using: str) -> int | None:
    """Return the fence's current token, None if the resource was never leased; raises TableShadowed."""
    refuse_shadow(using)
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT token FROM leases_fence WHERE resource = %s", [resource])
        row = cursor.fetchone()
    return row[0] if row else None


def refuse_shadow(using: str, *, tables: tuple[str, ...] = ("leases_fence", "leases_leaserecord")) -> None:
    """Raise TableShadowed if this session finds a temporary table of its own in place of one of `tables`."""
    with connections[using].cursor() as cursor:
        cursor.execute(_SHADOW, [list(tables)])
        for table, schema in cursor.fetchall():
            raise TableShadowed(table, f"finds {table} in {schema}, a temporary table of its own")


def release(resource: str, token: int, *, using: str) -> None:
    """Write to the lease's record that it was released, unless it has ended; in one statement of its own."""
    with connections[using].cursor() as cursor:
        cursor.execute(_RELEASE, {"resource": resource, "token": token})


def place(what: str, *, using: str) -> str:
    """Return the resource that the one process has leased which does `what` for the tables of `using`.

    Several databases and projects may share one Redis, so its name tells whose tables are meant.
    """
    with connections[using].cursor() as cursor:
        cursor.execute(_PLACE, {"what": what})
        return str(cursor.fetchone()[0])


def limit_ms(ttl_ms: int) -> int:
    """Return how long a transaction under a lease of `ttl_ms` may idle, or wait for a lock."""
    return max(1, min(2000, ttl_ms // 3))


def has_open_transaction(using: str) -> bool:
    """Say whether this thread has an open transaction on any connection to the database of `using`."""
    here = _address(connections[using])
    return any(
        _is_in_transaction(connection)
        for connection in connections.all(initialized_only=True)
        if _address(connection) == here
    )


def reopen_if_closed(using: str) -> None:
    """Give this thread a new connection if the server has closed the old one; never inside a transaction.

    One that lives stays, also beyond CONN_MAX_AGE: temporary tables, settings and cursors of the caller live in it.
    Costs no round trip: what the server has not closed has nothing to say while nothing is asked.
    """
    connection: Any = connections[using]  # the stubs do not know of health checks
    if connection.connection is None or _is_in_transaction(connection):
        return
    if not connection.errors_occurred and _is_silent(connection.connection):
        connection.health_check_done = True
    elif connection.is_usable():
        connection.errors_occurred = False
        connection.health_check_done = True
    else:
        connection.close()


def _is_in_transaction(connection: Any) -> bool:
    """Say whether this connection has an open transaction, also one that was begun in SQL."""
    if connection.connection is None or connection.in_atomic_block:
        return bool(connection.in_atomic_block)
    return not connection.get_autocommit() or connection.connection.info.transaction_status in _IN_TRANSACTION


def _is_silent(connection: Any) -> bool:
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


def sqlstate(error: BaseException) -> str | None:
    """Return PostgreSQL's five-character code of an error that Django wrapped, or of psycopg's own (as from COPY)."""
    return getattr(error.__cause__ or error, "sqlstate", None)


def _address(connection: BaseDatabaseWrapper) -> tuple[object, ...]:
    settings = connection.settings_dict
    return settings["HOST"], settings["PORT"], settings["NAME"]
