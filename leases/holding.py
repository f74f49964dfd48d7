"""Holding leases: `hold()`, and which leases the current thread holds."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from leases.acquiring import acquire
from leases.conf import conf
from leases.errors import InvalidTtl
from leases.lease import Lease
from leases.resources import validated
from leases.stopping import Job

logger = logging.getLogger("leases")


class _Thread(threading.local):
    """What this thread holds; no other thread or task inherits it."""

    def __init__(self) -> None:
        self.leases: dict[tuple[str, str], Lease] = {}
        self.job = Job()


_thread = _Thread()


def held_leases(using: str) -> list[Lease]:
    """Return the leases that this thread holds on `using`, oldest first; a forked child holds none."""
    return [lease for lease in _thread.leases.values() if lease.using == using and lease.process.pid == os.getpid()]


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
    InvalidResource, InvalidTtl, and LeaseCorrupt. The body's own exception is never masked. In the body, LeaseLost is
    raised by a statement that was cancelled because the lease is lost, or by the next one, or by `lease.check()`.
    """
    name = validated(resource)
    _validate(wait, what="wait")
    _validate(linger, what="linger", longest=conf.MAX_TTL)
    mine = current_lease(name, using=using)
    if mine is not None:
        mine.check()
        yield mine
        mine.check()
        return
    lease = acquire(name, ttl=conf.TTL if ttl is None else ttl, wait=wait, using=using, job=_thread.job)
    ended_well = False
    try:
        with _current(lease):
            yield lease
            logger.info(
                "The work under the lease on %s is done.",
                name,
                extra={"event": "lease.releasing", "resource": name, "token": lease.token},
            )
            lease.check()
        ended_well = True
    finally:
        lease.release(linger=linger if ended_well else timedelta(0))


def _validate(value: object, *, what: str, longest: timedelta = timedelta.max) -> None:
    if not isinstance(value, timedelta):
        raise InvalidTtl(value, what=what, reason="it is not a timedelta")
    if value < timedelta(0):
        raise InvalidTtl(value, what=what, reason="it is negative")
    if value > longest:
        raise InvalidTtl(value, what=what, reason=f"it is longer than LEASES_MAX_TTL ({longest})")


@contextmanager
def lent(lease: Lease) -> Iterator[None]:
    """Let this thread work under a lease that another thread acquired and goes on holding meanwhile."""
    lease.check()
    if current_lease(lease.resource, using=lease.using) is lease:
        yield
        return
    with _current(lease):
        yield


@contextmanager
def _current(lease: Lease) -> Iterator[None]:
    # A generator may be closed in another thread than it ran in.
    leases, thread_id = _thread.leases, threading.get_ident()
    key = lease.using, lease.resource

    def end() -> None:
        if leases.get(key) is lease:
            del leases[key]
        lease.job.ended(lease, thread_id)

    try:
        leases[key] = lease
        lease.job.started(lease)
        # One that was lost before it was known whom to stop would stop nobody.
        lease.check()
        yield
    finally:
        # Twice, because the one asynchronous exception that a lost lease may raise can land in either.
        try:
            end()
        finally:
            end()


def _forked() -> None:
    """Own nothing, and no lock that a thread of the parent held at that moment."""
    for job in {_thread.job, *(lease.job for lease in _thread.leases.values())}:
        job.reset()


os.register_at_fork(after_in_child=_forked)
