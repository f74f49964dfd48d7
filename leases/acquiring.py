"""Acquiring a lease: Redis grants, PostgreSQL registers, and only then is it held."""

import asyncio
import logging
import random
import secrets
import threading
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial

from django.db import DatabaseError
from redis.exceptions import RedisError

from leases import blockers, fence, forgetting, incidents, metrics, redis_store
from leases.clock import boottime
from leases.conf import conf
from leases.errors import (
    InsideCoroutine,
    InsideTransaction,
    InvalidTtl,
    LeaseBusy,
    LeaseCorrupt,
    LeaseError,
    LeaseUnavailable,
)
from leases.keeper import keeper
from leases.lease import Lease, key_ttl_ms
from leases.models import Incident
from leases.process import ProcessIdentity
from leases.stopping import Job

logger = logging.getLogger("leases")

#: How often a token that the fence refused is replaced by a higher one before the acquisition gives up.
_ATTEMPTS = 3
#: The longest a waiter goes without asking again, should it miss the release.
_LONGEST_WAIT_S = 1.0


def acquire(resource: str, *, ttl: timedelta, wait: timedelta = timedelta(0), using: str, job: Job) -> Lease:
    """Acquire `resource` for `job` or raise; what is acquired is renewed from then on, and must be released.

    Raises as `leases.hold()` does.
    """
    _refuse_coroutine(resource)
    _validate_ttl(ttl)
    if fence.has_open_transaction(using):
        raise InsideTransaction(resource, using=using)
    asked_at = boottime()
    give_up_at = asked_at + wait.total_seconds()
    try:
        try:
            lease = _acquire_once(resource, ttl=ttl, using=using, job=job)
        except LeaseBusy:
            if boottime() >= give_up_at:
                raise
            lease = _wait(resource, give_up_at=give_up_at, ttl=ttl, using=using, job=job)
    except LeaseBusy as busy:
        logger.info("%s", busy, extra={"event": "lease.busy", "resource": resource, "holder": busy.holder})
        metrics.busy(resource)
        raise
    metrics.acquired(resource, waited_s=boottime() - asked_at)
    return lease


def _wait(resource: str, *, give_up_at: float, ttl: timedelta, using: str, job: Job) -> Lease:
    try:
        with redis_store.woken_by_release(resource) as wait_for_release:
            while True:
                try:
                    return _acquire_once(resource, ttl=ttl, using=using, job=job)
                except LeaseBusy as busy:
                    left_s = give_up_at - boottime()
                    if left_s <= 0:
                        raise
                    expires_in_s = max(0.01, busy.retry_after.total_seconds())
                    wait_for_release(min(left_s, expires_in_s, random.uniform(0.5, 1) * _LONGEST_WAIT_S))  # noqa: S311
    except RedisError as error:
        raise LeaseUnavailable(resource, reason=f"Redis does not answer as it should ({error})") from error


def _acquire_once(resource: str, *, ttl: timedelta, using: str, job: Job) -> Lease:
    holder = secrets.token_hex(16)
    floor = 1
    for _ in range(_ATTEMPTS):
        asked_at = boottime()
        token = _ask_redis(resource, holder=holder, ttl=ttl, floor=floor)
        _log("lease.acquired", "Redis granted %s under token %d.", resource, token)
        granted = partial(Lease, resource, holder=holder, token=token, ttl=ttl, using=using, asked_at=asked_at, job=job)
        try:
            unreleased = _register(resource, holder=holder, token=token, ttl=ttl, using=using)
        except fence.Refused as refused:
            floor = refused.stored + 1
            continue
        except LeaseError:
            _give_back(resource, holder=holder, token=token)
            raise
        except BaseException:
            # The thread is being stopped, before or after the commit.
            granted().release()
            raise
        lease = granted()
        try:
            if boottime() >= lease.deadline:
                raise LeaseUnavailable(resource, reason="granting it took longer than it would have lasted")
            keeper.keep(lease)
            # Only now: whoever is told may take longer than the lease lasts without renewal.
            for earlier in unreleased:
                _report_unreleased(resource, earlier, using=using)
        except BaseException:
            # An outer lease of this thread may be lost meanwhile, and the report, being SQL, says so.
            lease.release()
            raise
        _log("lease.registered", "Leased %s under token %d.", resource, token)
        return lease
    _give_back(resource, holder=holder, token=token)
    raise LeaseBusy(resource, holder="a holder with a newer token", retry_after=ttl)


def _ask_redis(resource: str, *, holder: str, ttl: timedelta, floor: int) -> int:
    ttl_ms = key_ttl_ms(ttl)
    try:
        try:
            answer = redis_store.acquire(resource, holder=holder, ttl_ms=ttl_ms, floor=floor)
        except RedisError:
            # The reply may be what was lost: asked again, the script finds this holder's own grant.
            answer = redis_store.acquire(resource, holder=holder, ttl_ms=ttl_ms, floor=floor)
    except RedisError as error:
        raise LeaseUnavailable(resource, reason=f"Redis does not answer as it should ({error})") from error
    except BaseException:
        # The thread is being stopped, and may have been granted it meanwhile: asked again, the script says so.
        with suppress(RedisError):
            answer = redis_store.acquire(resource, holder=holder, ttl_ms=ttl_ms, floor=floor)
            if isinstance(answer, redis_store.Granted):
                redis_store.release(resource, holder=holder, token=answer.token)
        raise
    if isinstance(answer, redis_store.Held):
        raise LeaseBusy(resource, holder=answer.holder, retry_after=answer.left)
    if isinstance(answer, redis_store.Corrupt):
        raise LeaseCorrupt(resource, key=answer.key, value=answer.value)
    return answer.token


def _register(resource: str, *, holder: str, token: int, ttl: timedelta, using: str) -> list[fence.Unreleased]:
    registration = fence.Registration(
        resource=resource,
        token=token,
        holder=holder,
        ttl_ms=round(ttl / timedelta(milliseconds=1)),
        process=ProcessIdentity.own(),
        thread=threading.current_thread().name,
    )
    limit_ms = fence.limit_ms(registration.ttl_ms)
    fence.reopen_if_closed(using)
    try:
        forgetting.verify(using)
        return fence.register(registration, lock_timeout_ms=blockers.PATIENCE_MS, using=using)
    except DatabaseError as error:
        blocked = fence.sqlstate(error) == fence.LOCK_NOT_AVAILABLE
    # Either a transaction of the former holder is still open, or the connection died, before or after the commit:
    # registered twice, the token is found as our own.
    try:
        fence.reopen_if_closed(using)
        forgetting.verify(using)
        with blockers.being_cleared(using) if blocked else nullcontext():
            return fence.register(registration, lock_timeout_ms=limit_ms + 500, using=using)
    except DatabaseError as error:
        if fence.sqlstate(error) == fence.LOCK_NOT_AVAILABLE:
            raise LeaseBusy(
                resource,
                holder="a former holder whose transaction is still open",
                retry_after=timedelta(milliseconds=limit_ms),
            ) from error
        reason = f"the database does not answer as it should ({error})"
        if fence.sqlstate(error) == fence.NO_SUCH_TABLE:
            reason = f"database {using!r} has no tables of leases, so run manage.py migrate first"
        raise LeaseUnavailable(resource, reason=reason) from error


def _report_unreleased(resource: str, earlier: fence.Unreleased, *, using: str) -> None:
    try:
        incidents.report(
            Incident.Detector.UNRELEASED_RECORD,
            resource=resource,
            token=earlier.token,
            holder=earlier.holder,
            process=earlier.process,
            fate=Incident.Fate.CRASHED if earlier.process.is_gone() else Incident.Fate.UNKNOWN,
            using=using,
        )
    except DatabaseError:
        logger.exception("The incident of %s under token %d could not be recorded.", resource, earlier.token)


def _give_back(resource: str, *, holder: str, token: int) -> None:
    try:
        redis_store.release(resource, holder=holder, token=token)
    except RedisError as error:
        logger.warning("The key of %s could not be deleted and will expire: %s", resource, error)


def _refuse_coroutine(resource: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InsideCoroutine(resource)


def _validate_ttl(ttl: object) -> None:
    if not isinstance(ttl, timedelta):
        raise InvalidTtl(ttl, reason="it is not a timedelta")
    if ttl < timedelta(milliseconds=1):
        raise InvalidTtl(ttl, reason="it is shorter than a millisecond")
    if ttl + conf.LOCK_DELAY > conf.MAX_TTL:
        raise InvalidTtl(ttl, reason=f"with LEASES_LOCK_DELAY it is longer than LEASES_MAX_TTL ({conf.MAX_TTL})")


def _log(event: str, message: str, resource: str, token: int) -> None:
    logger.info(message, resource, token, extra={"event": event, "resource": resource, "token": token})
