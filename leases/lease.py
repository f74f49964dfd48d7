"""One lease: what its holder may do with it, how it is renewed, and how it ends."""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial

from django.db import DatabaseError
from redis.exceptions import RedisError

from leases import fence, incidents, metrics, redis_store
from leases.clock import boottime
from leases.conf import conf
from leases.errands import errands, stops
from leases.errors import LeaseLost
from leases.models import Incident, LeaseRecord
from leases.presenting import presenting
from leases.process import ProcessIdentity
from leases.stopping import Job

logger = logging.getLogger("leases")

#: Part of the ttl by which a holder stops before Redis does: the rates of two clocks differ by far less.
_MARGIN = 1 / 20


class Lease:
    """The grant of one resource to one holder, in the thread that acquired it.

    `resource` is its name, `token` its fencing token, `holder` the unique value of this acquisition, `ttl` how long it
    lasts without renewal, `using` the database alias whose fence knows it.
    """

    def __init__(
        self, resource: str, *, holder: str, token: int, ttl: timedelta, using: str, asked_at: float, job: Job
    ) -> None:
        self.resource = resource
        self.holder = holder
        self.token = token
        self.ttl = ttl
        self.using = using
        self.job = job
        self.process = ProcessIdentity.own()
        self.thread = threading.current_thread()
        self._ending = threading.Lock()
        self._redis = threading.Lock()
        self._ended: Incident.Detector | LeaseRecord.End | None = None
        self._restoring = False
        self._unproven = False
        self._warned = False
        self.renewed(asked_at)
        self.granted_at = boottime()

    def __repr__(self) -> str:
        return f"<Lease {self.resource} token={self.token} holder={self.holder}>"

    # What the job uses

    def check(self) -> None:
        """Return if the lease is still held, else raise LeaseLost; cheap enough for every turn of a loop.

        Raised once in a thread, it lets the SQL that follows there pass, for whoever handles it.
        """
        if self.process.pid != os.getpid():
            raise LeaseLost(self.resource, token=self.token, reason="it belongs to the process that forked this one")
        if self._ended is None and boottime() >= self.deadline:
            # A process that was frozen looks at its clock before its keeper does.
            self.lose(Incident.Detector.DEADLINE_PASSED)
        if self._ended is not None:
            self.job.tell(self)
            raise LeaseLost(self.resource, token=self.token, reason=str(self._ended.label))

    def remaining(self) -> timedelta:
        """Return the time until the deadline as of the last renewal; zero once the lease has ended."""
        left = 0.0 if self._ended is not None else self.deadline - boottime()
        return timedelta(seconds=max(0.0, left))

    def transaction(self) -> AbstractContextManager[None]:
        """Open a transaction on `using` that presents this lease, so that it may write the resource's fenced rows.

        Keep it short and make no network call in it. Raises LeaseLost if the lease has ended, StaleToken if the fence
        is beyond its token, NotHeld if a row of a resource that was not presented was written.
        """
        return presenting([self], self.using)

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Run the few lines of the body without being interrupted by an asynchronous exception.

        The lease may still be lost meanwhile; SQL that runs then is cancelled all the same, SQL that begins later is
        not, and LeaseLost is raised at the end.
        """
        with self.job.shielded():
            yield
        self.check()

    def interruptible(self, interrupt: Callable[[], None]) -> AbstractContextManager[None]:
        """Have `interrupt` called from another thread when a lease is lost while the body runs; it must not block.

        For what can be ended from outside, as a call over a socket by `partial(sock.shutdown, socket.SHUT_RDWR)`.
        Within another one, both are called.
        """
        return self.job.interruptible(interrupt)

    @property
    def is_held(self) -> bool:
        return self._ended is None

    # What the keeper uses

    @property
    def ttl_ms(self) -> int:
        return round(self.ttl / timedelta(milliseconds=1))

    def as_renewal(self) -> redis_store.Renewal:
        return redis_store.Renewal(self.resource, self.holder, self.token, key_ttl_ms(self.ttl))

    def still_ours(self, asked_at: float) -> None:
        """Redis let the lease last on, at a request made at `asked_at`; not believed before the fence has spoken."""
        if self._unproven:
            self.forgotten()
        else:
            self.renewed(asked_at)

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
        metrics.lost(self.resource, cause=detector.value, held_s=boottime() - self.granted_at)
        self._report(detector)
        # Last: this may be the job's own thread, and the interrupt that follows must not land in a lock of logging.
        stops.run(
            partial(self.job.stop, self),
            failed=f"The job that lost {self.resource} was not interrupted; its next fenced write is refused.",
        )

    def abandon(self) -> None:
        """Stop renewing the lease of a thread that died without releasing it; it expires by itself."""
        if self._end(LeaseRecord.End.EXPIRED):
            logger.error("The thread %s ended without releasing %s.", self.thread.name, self.resource)

    def forgotten(self) -> None:
        """Redis has no such key although the deadline has not passed: ask the fence whether to go on."""
        self._unproven = True
        if not self._restoring:
            self._restoring = True
            errands.run(
                self._restore,
                failed=f"Whether the lease on {self.resource} may go on is not known yet; its next renewal asks again.",
            )

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
                    self._unproven = False
                    self._report(Incident.Detector.KEY_GONE, ended=False)
                else:
                    redis_store.release(self.resource, holder=self.holder, token=self.token)
                    self.lose(Incident.Detector.KEY_GONE)
        finally:
            self._restoring = False

    # The end

    def release(self, *, linger: timedelta = timedelta(0)) -> None:
        """Give the lease back; a repeated release does nothing.

        `hold()` does this. Done in its body, it leaves the rest of the body without a lease, so LeaseLost is raised.

        The keeper lets go first, then the end is written to the record, then the key is deleted if it is still this
        holder's; that of a lost lease is, unless LEASES_LOCK_DELAY is set. Errors of either server are logged, not
        raised: the key expires by itself. Within an open transaction, as when a generator that holds a lease is closed
        there, another thread does this over its own connection: rolled back, it would not have happened.
        """
        if self.process.pid != os.getpid() or self._ended == LeaseRecord.End.RELEASED:
            return
        if self._end(LeaseRecord.End.RELEASED):
            metrics.released(self.resource, held_s=boottime() - self.granted_at)
            if fence.has_open_transaction(self.using):
                errands.run(
                    partial(self._give_back, linger=linger),
                    failed=f"{self.resource} was not given back; its key expires.",
                )
            else:
                self._give_back(linger=linger)
        elif not conf.LOCK_DELAY:
            # A lost lease's key may still be there, as when Redis could not be reached; without it the next can start.
            self._delete_key()

    def _give_back(self, *, linger: timedelta) -> None:
        try:
            self._record_release()
            answer = self._delete_key(linger)
        except BaseException:
            # The thread is being stopped. Both again, because what stopped it can have landed in either.
            self._record_release()
            self._delete_key(linger)
            raise
        if answer is None:
            return
        if answer != "released":
            self._report(Incident.Detector.RELEASE_REFUSED)
        logger.info(
            "Released %s.",
            self.resource,
            extra={"event": "lease.released", "resource": self.resource, "token": self.token},
        )

    def _delete_key(self, linger: timedelta = timedelta(0)) -> str | None:
        linger_ms = round(linger / timedelta(milliseconds=1))
        try:
            with self._redis:
                return redis_store.release(self.resource, holder=self.holder, token=self.token, linger_ms=linger_ms)
        except RedisError as error:
            logger.warning("The key of %s could not be deleted and will expire: %s", self.resource, error)
            return None

    def _record_release(self) -> None:
        with self.job.shielded():  # another lease of this thread may be lost; this is not the place to say so
            try:
                fence.reopen_if_closed(self.using)
                try:
                    fence.release(self.resource, self.token, using=self.using)
                except DatabaseError:
                    # The connection died unnoticed, as when a pooler lost its server.
                    fence.reopen_if_closed(self.using)
                    fence.release(self.resource, self.token, using=self.using)
            except DatabaseError as error:
                logger.warning("The end of the lease on %s could not be recorded: %s", self.resource, error)

    def _end(self, how: Incident.Detector | LeaseRecord.End) -> bool:
        with self._ending:
            if self._ended is not None:
                return False
            self._ended = how
            return True

    def _report(self, detector: Incident.Detector, *, ended: bool = True) -> None:
        errands.run(
            partial(
                incidents.report,
                detector,
                resource=self.resource,
                token=self.token,
                holder=self.holder,
                process=self.process,
                fate=Incident.Fate.RUNNING,
                ended=ended,
                using=self.using,
            ),
            failed=f"An incident of {self.resource} was not reported; the watcher or the next holder reports it.",
        )


def key_ttl_ms(ttl: timedelta) -> int:
    """Return how long the key of a lease stays in Redis without renewal: the ttl, and LEASES_LOCK_DELAY after it."""
    lock_delay: timedelta = conf.LOCK_DELAY
    return round((ttl + lock_delay) / timedelta(milliseconds=1))
