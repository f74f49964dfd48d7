"""Transactions that present the leases they write under."""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from leases import fence, metrics
from leases.clock import boottime
from leases.errors import FenceMissing, NotHeld, OldSnapshot, StaleToken, TableShadowed
from leases.models import Incident

if TYPE_CHECKING:
    from leases.lease import Lease

#: What was presented on a connection by the blocks that its thread is in.
_presented: "weakref.WeakKeyDictionary[BaseDatabaseWrapper, list[Lease]]" = weakref.WeakKeyDictionary()


@contextmanager
def presenting(leases: "Sequence[Lease]", using: str, *, savepoint: bool = True) -> Iterator[None]:
    """Open a transaction on `using` that presents `leases`, one after another in the order of their resources.

    Within an open transaction this is a savepoint, or nothing of its own with `savepoint=False`. A lease that a block
    around this one presented is not presented again; one that an earlier block did is, because a savepoint that is
    rolled back takes with it what was presented inside.

    Raises LeaseLost if one of them has ended, StaleToken if a fence is beyond its token, NotHeld if a row of a resource
    that was not presented was written, TableShadowed if this session finds another fence than the rows belong to,
    OldSnapshot if the open transaction cannot see that a lease was granted. What the body raises, and the database's
    own 40001 (start over), comes through as it is; the lease is held on.
    """
    connection = connections[using]
    presented = _presented.setdefault(connection, [])
    if not connection.in_atomic_block:
        presented.clear()
    before = len(presented)
    try:
        with transaction.atomic(using=using, savepoint=savepoint):
            try:
                for lease in sorted(leases, key=lambda lease: lease.resource):
                    lease.check()
                    if lease not in presented:
                        _present(lease, using)
                        presented.append(lease)
                yield
            finally:
                # Before the commit, after which hooks may write again.
                del presented[before:]
    except StaleToken as stale:
        metrics.stale_write_refused(stale.resource)
        for lease in leases:
            if lease.resource == stale.resource:
                lease.job.tell(lease)
                lease.lose(Incident.Detector.STALE_WRITE)
        raise
    except (DatabaseError, psycopg.Error) as error:
        message = str(error.__cause__ or error).partition("\n")[0]
        if fence.sqlstate(error) == fence.NOT_PRESENTED:
            raise NotHeld(message.removeprefix("not presented: ")) from error
        if fence.sqlstate(error) == fence.OTHER_FENCE:
            raise TableShadowed("leases_fence", message) from error
        raise


def _present(lease: "Lease", using: str) -> None:
    try:
        fence.present(lease.resource, lease.token, ttl_ms=lease.ttl_ms, using=using)
    except FenceMissing:
        if fence.sees_nothing_since(boottime() - lease.granted_at, lease.resource, lease.token, using=using):
            raise OldSnapshot(lease.resource, token=lease.token) from None
        raise
