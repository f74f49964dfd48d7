"""Breaking a lease: a person ends what its holder will not end, and the holder can write no more.

Deleting the key alone would let the next holder start while the old one goes on writing. So the fence is raised first,
together with the audit row and the record's end; then the key is deleted, if it is still that holder's.
"""

import logging
from dataclasses import dataclass
from datetime import timedelta

from django.db import DatabaseError, connections, transaction
from redis.exceptions import RedisError

from leases import blockers, fence, interventions, keys, redis_store
from leases.errors import InsideTransaction, LeaseBusy, LeaseCorrupt, LeaseUnavailable, NotLeased
from leases.models import Intervention, LeaseRecord
from leases.resources import key_of, validated

logger = logging.getLogger("leases")

#: How long to wait for the holder's open transaction; longer than any fenced one may idle.
_LOCK_TIMEOUT_MS = 5000

_LIMIT = """
SELECT set_config('lock_timeout', %(lock_timeout)s, true),
       CASE WHEN current_setting('synchronous_commit') <> 'remote_apply'
            THEN set_config('synchronous_commit', 'on', true) END
"""
_RAISE = """
INSERT INTO leases_fence AS f (resource, token, holder, changed_at)
VALUES (%(resource)s, %(token)s + 1, 'broken', clock_timestamp())
ON CONFLICT (resource) DO UPDATE
   SET token = excluded.token, holder = excluded.holder, changed_at = excluded.changed_at
 WHERE f.token <= %(token)s
"""
_LATEST = """
SELECT holder, token FROM leases_leaserecord WHERE resource = %(resource)s AND ended_at IS NULL
 ORDER BY token DESC LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Broken:
    """What was broken: whose lease, under which token, and whether its key was still there."""

    resource: str
    holder: str
    token: int
    key_deleted: bool


def break_lease(resource: str, *, reason: str, by: str, token: int | None = None, using: str = "default") -> Broken:
    """End the lease on `resource` for its holder, who can write no more, and let others have it; `reason` is kept.

    With `token`, only if it is still the lease of that token. The holder's open transaction is waited for, and ended if
    it idles. Breaking again is harmless.

    Raises InsideTransaction, NotLeased, ReasonMissing, LeaseCorrupt, TableShadowed, LeaseBusy if the holder's
    transaction went on for 5 s, and LeaseUnavailable; if that says that the holder is fenced, only the key is left to
    delete: break again.
    """
    name = validated(resource)
    why = interventions.validated_reason(reason)
    if fence.has_open_transaction(using):
        raise InsideTransaction(name, using=using, action="broken")
    holder, broken = current(name, using=using)
    if broken is None or holder is None or token not in (None, broken):
        raise NotLeased(name, token=token, current=broken)
    fence.refuse_shadow(using)
    try:
        with blockers.being_cleared(using), transaction.atomic(using=using):
            with connections[using].cursor() as cursor:
                cursor.execute(_LIMIT, {"lock_timeout": f"{_LOCK_TIMEOUT_MS}ms"})
                cursor.execute(_RAISE, {"resource": name, "token": broken})
                cursor.execute(fence.END, {"resource": name, "token": broken, "end": LeaseRecord.End.BROKEN.value})
            interventions.record(Intervention.Action.BREAK, reason=why, by=by, resource=name, token=broken, using=using)
    except DatabaseError as error:
        if fence.sqlstate(error) != fence.LOCK_NOT_AVAILABLE:
            raise LeaseUnavailable(
                name, reason=f"the database does not answer as it should ({error})", action="broken"
            ) from error
        wait = timedelta(milliseconds=_LOCK_TIMEOUT_MS)
        raise LeaseBusy(name, holder="a holder whose transaction is still open", retry_after=wait) from error
    try:
        deleted = redis_store.release(name, holder=holder, token=broken) == "released"
    except RedisError as error:
        raise LeaseUnavailable(
            name,
            reason=f"its holder is fenced, but the key is still there, Redis does not answer ({error})",
            action="broken",
        ) from error
    logger.warning(
        "%s broke the lease on %s (token %d): %s",
        by,
        name,
        broken,
        why,
        extra={"event": "lease.broken", "resource": name, "token": broken, "by": by},
    )
    return Broken(name, holder, broken, deleted)


def current(resource: str, *, using: str) -> tuple[str | None, int | None]:
    """Return holder and token by the key, or, if there is none, by the newest record that has not ended."""
    try:
        key = keys.read([resource]).get(resource)
    except RedisError as error:
        raise LeaseUnavailable(
            resource, reason=f"Redis does not answer as it should ({error})", action="broken"
        ) from error
    if key is not None:
        if key.token is None:
            raise LeaseCorrupt(resource, key=key_of(resource), value=key.value)
        return key.holder, key.token
    with connections[using].cursor() as cursor:
        cursor.execute(_LATEST, {"resource": resource})
        holder, token = cursor.fetchone() or (None, None)
    return holder, token
