"""One lease: acquire, check, write under it, release."""

import asyncio
import logging
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import psycopg
from django.db import DatabaseError, transaction
from redis.exceptions import RedisError

from leases import fence, incidents, redis_store
from leases.clock import boottime
from leases.conf import conf
from leases.errands import errands
from leases.errors import (
    InsideCoroutine,
    InsideTransaction,
    InvalidTtl,
    LeaseBusy,
    LeaseCorrupt,
    LeaseError,
    LeaseLost,
    LeaseUnavailable,
    NotHeld,
    StaleToken,
)
from leases.keeper import keeper
from leases.models import Incident, LeaseRecord
from leases.process import ProcessIdentity
from leases.resources import validated

logger = logging.getLogger("leases")

#: How often a token that the fence refused is replaced by a higher one before the acquisition gives up.
_ATTEMPTS = 3
#: Part of the ttl by which a holder stops before Redis does: the rates of two clocks differ by far less.
_MARGIN = 1 / 20


class Lease:
    """The grant of one resource to one holder, in the thread that acquired it.

    `resource` is its name, `token` its fencing token, `holder` the unique value of this acquisition, `ttl` how long it
    lasts without renewal, `using` the database alias whose fence knows it.
    """

    def __init__(self, resource: str, *, holder: str, token: int, ttl: timedelta, using: str, asked_at: float) -> None:
        self.resource = resource
        self.holder = holder
        self.token = token
        self.ttl = ttl
        self.using = using
        self.process = ProcessIdentity.own()
        self.thread = threading.current_thread()
        self.depth = 1
        self._ending = threading.Lock()
        self._redis = threading.Lock()
        self._ended: Incident.Detector | LeaseRecord.End | None = None
        self._restoring = False
        self._warned = False
        self._on_loss: list[Callable[[], None]] = []
        self.renewed(asked_at)
        self.granted_at = boottime()

    def __repr__(self) -> str:
        return f"<Lease {self.resource} token={self.token} holder={self.holder}>"

    # What the job uses

    def check(self) -> None:
        """Return if the lease is still held, else raise LeaseLost; cheap enough for every turn of a loop."""
        if self._ended is None and boottime() >= self.deadline:
            # A process that was frozen looks at its clock before its keeper does.
            self.lose(Incident.Detector.DEADLINE_PASSED)
        if self._ended is not None:
            raise LeaseLost(self.resource, token=self.token, reason=str(self._ended.label))
        if self.process.pid != os.getpid():
            raise LeaseLost(self.resource, token=self.token, reason="it belongs to the process that forked this one")

    def remaining(self) -> timedelta:
        """Return the time until the deadline as of the last renewal; zero once the lease has ended."""
        left = 0.0 if self._ended is not None else self.deadline - boottime()
        return timedelta(seconds=max(0.0, left))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Open a transaction on `using` that presents this lease, so that it may write the resource's fenced rows.

        Keep it short and make no network call in it. Raises LeaseLost if the lease has ended, StaleToken if the fence
        is beyond its token, NotHeld if a row of a resource that was not presented was written.
        """
        self.check()
        try:
            with transaction.atomic(using=self.using):
                self.present()
                yield
        except StaleToken as stale:
            if stale.resource == self.resource:
                self.lose(Incident.Detector.STALE_WRITE)
            raise
        except (DatabaseError, psycopg.Error) as error:
            raise_not_held(error)
            raise

    def present(self) -> None:
        """Present this lease's token in the transaction that is open on `using`."""
        self.check()
        fence.present(self.resource, self.token, ttl_ms=self.ttl_ms, using=self.using)

    def on_loss(self, call: Callable[[], None]) -> None:
        """Have `call` called, in another thread, at the moment the lease is found lost."""
        self._on_loss.append(call)

    @property
    def is_held(self) -> bool:
        return self._ended is None

    # What the keeper uses

    @property
    def ttl_ms(self) -> int:
        return round(self.ttl / timedelta(milliseconds=1))

    def as_renewal(self) -> redis_store.Renewal:
        return redis_store.Renewal(self.resource, self.holder, self.token, self.ttl_ms)

    def renewed(self, asked_at: float) -> None:
        """Count the deadline from `asked_at`, the moment before the request that was granted."""
        ttl_s = self.ttl.total_seconds()
        self.deadline = asked_at + ttl_s * (1 - _MARGIN)
        self.next_renewal = asked_at + ttl_s / 3

    def lose(self, detector: Incident.Detector) -> None:
        """End the lease because it is no longer ours; the first cause stays, an end by release is not undone."""
        if not self._end(detector):
            return
        logger.warning(
            "The lease on %s (token %d) is lost: %s.",
            self.resource,
            self.token,
            detector.label,
            extra={"event": "lease.lost", "resource": self.resource, "token": self.token, "detector": detector.value},
        )
        for call in self._on_loss:
            try:
                call()
            except Exception:
                logger.exception("Stopping the job that lost %s failed.", self.resource)
        self._report(detector)

    def abandon(self) -> None:
        """Stop renewing the lease of a thread that died without releasing it; it expires by itself."""
        if self._end(LeaseRecord.End.EXPIRED):
            logger.error("The thread %s ended without releasing %s.", self.thread.name, self.resource)

    def forgotten(self) -> None:
        """Redis has no such key although the deadline has not passed: ask the fence whether to go on."""
        if not self._restoring:
            self._restoring = True
            errands.run(self._restore)

    def warn_of_long_hold(self, held: timedelta) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s has been leased for %s; at %s it is abandoned (LEASES_MAX_HOLD).",
                self.resource,
                held,
                conf.MAX_HOLD,
                extra={"event": "lease.long", "resource": self.resource, "token": self.token},
            )

    def _restore(self) -> None:
        try:
            with self._redis:
                if not self.is_held:
                    return
                asked_at = boottime()
                if not redis_store.restore(self.as_renewal()):
                    self.lose(Incident.Detector.RENEWAL_REFUSED)
                elif fence.current(self.resource, using=self.using) == self.token:
                    self.renewed(asked_at)
                    self._report(Incident.Detector.KEY_GONE)
                else:
                    redis_store.release(self.resource, holder=self.holder, token=self.token)
                    self.lose(Incident.Detector.KEY_GONE)
        finally:
            self._restoring = False

    # The end

    def release(self, *, linger: timedelta = timedelta(0)) -> None:
        """Give the lease back; a repeated release does nothing.

        The keeper lets go first, then the end is written to the record, then the key is deleted if it is still this
        holder's. Errors of either server are logged, not raised: the key expires by itself.
        """
        if self.process.pid != os.getpid():
            return
        released = self._end(LeaseRecord.End.RELEASED)
        if not released and self._ended == LeaseRecord.End.RELEASED:
            return
        try:
            fence.reopen_if_closed(self.using)
            if released:
                fence.end(self.resource, self.token, LeaseRecord.End.RELEASED.value, using=self.using)
        except DatabaseError as error:
            logger.warning("The end of the lease on %s could not be recorded: %s", self.resource, error)
        linger_ms = round(linger / timedelta(milliseconds=1)) if released else 0
        try:
            with self._redis:
                answer = redis_store.release(self.resource, holder=self.holder, token=self.token, linger_ms=linger_ms)
        except RedisError as error:
            logger.warning("The key of %s could not be deleted and will expire: %s", self.resource, error)
            return
        if released and answer != "released":
            self._report(Incident.Detector.RELEASE_REFUSED)
        if released:
            logger.info(
                "Released %s.",
                self.resource,
                extra={"event": "lease.released", "resource": self.resource, "token": self.token},
            )

    def _end(self, how: Incident.Detector | LeaseRecord.End) -> bool:
        with self._ending:
            if self._ended is not None:
                return False
            self._ended = how
            return True

    def _report(self, detector: Incident.Detector) -> None:
        errands.run(
            partial(
                incidents.report,
                detector,
                resource=self.resource,
                token=self.token,
                holder=self.holder,
                process=self.process,
                fate=Incident.Fate.RUNNING,
                using=self.using,
            )
        )


class _Held(threading.local):
    """The leases that this thread holds; no other thread inherits them."""

    def __init__(self) -> None:
        self.leases: dict[tuple[str, str], Lease] = {}


_held = _Held()


def held_leases(using: str) -> list[Lease]:
    """Return the leases that this thread holds on `using`, oldest first."""
    return [lease for lease in _held.leases.values() if lease.using == using and lease.process.pid == os.getpid()]


def current_lease(resource: str | None = None, *, using: str = "default") -> Lease | None:
    """Return the lease this thread holds on `resource`, or its latest one; None if it holds none."""
    leases = held_leases(using)
    if resource is None:
        return leases[-1] if leases else None
    return next((lease for lease in leases if lease.resource == resource), None)


@contextmanager
def hold(
    resource: str,
    *,
    ttl: timedelta | None = None,
    wait: timedelta = timedelta(0),
    linger: timedelta = timedelta(0),
    using: str = "default",
) -> Iterator[Lease]:
    """Hold the lease on `resource` around the body, renewed every third of `ttl`; the body never runs without it.

    `ttl` defaults to LEASES_TTL. `wait` bounds how long to wait for another holder; by default not at all. `linger`
    keeps others out for a time after a clean end. `using` is the database alias whose fence and rows are meant. Asked
    for again in the same thread, the same lease is given, with the same token.

    Raises LeaseBusy if another holder has it, LeaseUnavailable if Redis or the database does not answer, LeaseLost if
    the body ended well but the lease had been lost, InsideTransaction within an open transaction on that database,
    InvalidResource, InvalidTtl, and LeaseCorrupt. The body's own exception is never masked.
    """
    name = validated(resource)
    again = current_lease(name, using=using)
    if again is not None:
        again.check()
        again.depth += 1
        try:
            yield again
        finally:
            again.depth -= 1
        return
    lease = acquire(name, ttl=conf.TTL if ttl is None else ttl, wait=wait, using=using)
    try:
        _held.leases[using, name] = lease
        yield lease
        logger.info(
            "The work under the lease on %s is done.",
            name,
            extra={"event": "lease.releasing", "resource": name, "token": lease.token},
        )
        lease.check()
    finally:
        _held.leases.pop((using, name), None)
        lease.release(linger=linger)


def acquire(resource: str, *, ttl: timedelta, wait: timedelta = timedelta(0), using: str = "default") -> Lease:
    """Acquire `resource` or raise; the caller must release it. `hold()` does both and is what jobs use."""
    _refuse_coroutine(resource)
    ttl_ms = _validated_ttl_ms(ttl)
    if fence.has_open_transaction(using):
        raise InsideTransaction(resource, using=using)
    give_up_at = boottime() + wait.total_seconds()
    while True:
        try:
            lease = _acquire_once(resource, ttl=timedelta(milliseconds=ttl_ms), ttl_ms=ttl_ms, using=using)
        except LeaseBusy as busy:
            left_s = give_up_at - boottime()
            if left_s <= 0:
                logger.info(
                    "%s",
                    busy,
                    extra={"event": "lease.busy", "resource": resource, "holder": busy.holder},
                )
                raise
            time.sleep(min(left_s, max(0.005, busy.retry_after.total_seconds()), random.uniform(0.05, 0.25)))  # noqa: S311
        else:
            keeper.keep(lease)
            return lease


def _acquire_once(resource: str, *, ttl: timedelta, ttl_ms: int, using: str) -> Lease:
    holder = secrets.token_hex(16)
    floor = 1
    for _ in range(_ATTEMPTS):
        asked_at = boottime()
        token = _ask_redis(resource, holder=holder, ttl_ms=ttl_ms, floor=floor)
        _log("lease.acquired", "Redis granted %s under token %d.", resource, token)
        try:
            unreleased = _register(resource, holder=holder, token=token, ttl_ms=ttl_ms, using=using)
        except fence.Refused as refused:
            floor = refused.stored + 1
            continue
        except LeaseError:
            _give_back(resource, holder=holder, token=token)
            raise
        lease = Lease(resource, holder=holder, token=token, ttl=ttl, using=using, asked_at=asked_at)
        for earlier in unreleased:
            _report_unreleased(resource, earlier, using=using)
        if boottime() >= lease.deadline:
            lease.release()
            raise LeaseUnavailable(resource, reason="granting it took longer than it would have lasted")
        _log("lease.registered", "Leased %s under token %d.", resource, token)
        return lease
    _give_back(resource, holder=holder, token=token)
    raise LeaseBusy(resource, holder="a holder with a newer token", retry_after=ttl)


def _ask_redis(resource: str, *, holder: str, ttl_ms: int, floor: int) -> int:
    try:
        try:
            answer = redis_store.acquire(resource, holder=holder, ttl_ms=ttl_ms, floor=floor)
        except (ConnectionError, TimeoutError, RedisError):
            # The reply may be what was lost: asked again, the script finds this holder's own grant.
            answer = redis_store.acquire(resource, holder=holder, ttl_ms=ttl_ms, floor=floor)
    except RedisError as error:
        raise LeaseUnavailable(resource, reason=f"Redis does not answer as it should ({error})") from error
    if isinstance(answer, redis_store.Held):
        raise LeaseBusy(resource, holder=answer.holder, retry_after=answer.left)
    if isinstance(answer, redis_store.Corrupt):
        raise LeaseCorrupt(resource, key=answer.key, value=answer.value)
    return answer.token


def _register(resource: str, *, holder: str, token: int, ttl_ms: int, using: str) -> list[fence.Unreleased]:
    def once() -> list[fence.Unreleased]:
        return fence.register(
            resource,
            token=token,
            holder=holder,
            ttl_ms=ttl_ms,
            process=ProcessIdentity.own(),
            thread=threading.current_thread().name,
            using=using,
        )

    fence.reopen_if_closed(using)
    try:
        try:
            return once()
        except DatabaseError as error:
            if fence.sqlstate(error) == fence.LOCK_NOT_AVAILABLE:
                raise LeaseBusy(
                    resource,
                    holder="a former holder whose transaction is still open",
                    retry_after=timedelta(milliseconds=fence.limit_ms(ttl_ms)),
                ) from error
            # The connection may have died before or after the commit: registered twice, the token is found as our own.
            fence.reopen_if_closed(using)
            return once()
    except DatabaseError as error:
        raise LeaseUnavailable(resource, reason=f"the database does not answer as it should ({error})") from error


def _report_unreleased(resource: str, earlier: fence.Unreleased, *, using: str) -> None:
    fate = Incident.Fate.CRASHED if earlier.process.is_gone() else Incident.Fate.UNKNOWN
    try:
        incidents.report(
            Incident.Detector.UNRELEASED_RECORD,
            resource=resource,
            token=earlier.token,
            holder=earlier.holder,
            process=earlier.process,
            fate=fate,
            using=using,
        )
    except DatabaseError:
        logger.exception("The incident of %s under token %d could not be recorded.", resource, earlier.token)


def _give_back(resource: str, *, holder: str, token: int) -> None:
    try:
        redis_store.release(resource, holder=holder, token=token)
    except RedisError as error:
        logger.warning("The key of %s could not be deleted and will expire: %s", resource, error)


def raise_not_held(error: Exception) -> None:
    """Raise NotHeld if `error` is the trigger's refusal of a row whose resource was not presented."""
    if fence.sqlstate(error) == fence.NOT_PRESENTED:
        detail = str(error.__cause__ or error).splitlines()[0]
        raise NotHeld(detail.removeprefix("not presented: ")) from error


def _refuse_coroutine(resource: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InsideCoroutine(resource)


def _validated_ttl_ms(ttl: object) -> int:
    if not isinstance(ttl, timedelta):
        raise InvalidTtl(ttl, reason="it is not a timedelta")
    ttl_ms = round(ttl / timedelta(milliseconds=1))
    if ttl_ms < 1:
        raise InvalidTtl(ttl, reason="it is shorter than a millisecond")
    if ttl > conf.MAX_TTL:
        raise InvalidTtl(ttl, reason=f"it is longer than LEASES_MAX_TTL ({conf.MAX_TTL})")
    return ttl_ms


def _log(event: str, message: str, resource: str, token: int) -> None:
    logger.info(message, resource, token, extra={"event": event, "resource": resource, "token": token})
