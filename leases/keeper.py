"""The one thread per process that renews all its leases.

A renewal is due every third of a lease's life, and the due ones go to Redis together. An error means retry until the
safe deadline, which counts from before the request that was last answered; a definite refusal means lost, at once.
"""

import heapq
import itertools
import logging
import math
import os
import threading
import weakref
from datetime import timedelta
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from leases import metrics, redis_store
from leases.clock import boottime
from leases.conf import conf
from leases.models import Incident

if TYPE_CHECKING:
    from leases.lease import Lease

logger = logging.getLogger("leases")

#: Renewals that go to Redis in one round trip; small enough that the last is not late because of the first.
_BATCH = 500
#: Part of the ttl after which a renewal that failed is tried again.
_RETRY_AFTER = 1 / 12


class Keeper:
    """Renews leases until they are dropped, garbage-collected, lost, or held for too long.

    It holds no lease alive: one whose job was torn down between two bytecodes is collected, and so no longer renewed.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything; a forked child owns none of its parent's leases."""
        self._wake = threading.Condition()
        self._due: list[tuple[float, int, weakref.ref[Lease]]] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None
        self._wakes_at = 0.0

    def keep(self, lease: "Lease") -> None:
        """Renew `lease` from now on."""
        with self._wake:
            self._schedule(lease)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="leases-keeper", daemon=True)
                self._thread.start()
            # Most leases are due after the one it waits for anyway; waking it for each costs more than renewing.
            if lease.next_renewal < self._wakes_at:
                self._wake.notify()

    def kept(self) -> "list[Lease]":
        """Return the leases of this process that are still held."""
        with self._wake:
            leases = [reference() for _, _, reference in self._due]
        return [lease for lease in leases if lease is not None and lease.is_held]

    def _schedule(self, lease: "Lease") -> None:
        heapq.heappush(self._due, (lease.next_renewal, next(self._order), weakref.ref(lease)))

    def _work(self) -> None:
        while True:
            try:
                self._renew(self._wait_for_due())
            except Exception:
                logger.exception("The keeper met an error; it goes on.")

    def _wait_for_due(self) -> "list[Lease]":
        with self._wake:
            while True:
                now = boottime()
                if self._due and self._due[0][0] <= now:
                    break
                self._wakes_at = self._due[0][0] if self._due else math.inf
                self._wake.wait(self._wakes_at - now if self._due else None)
            self._wakes_at = 0.0
            leases: list[Lease] = []
            while self._due and self._due[0][0] <= now and len(leases) < _BATCH:
                lease = heapq.heappop(self._due)[2]()
                if lease is not None and lease.is_held:
                    leases.append(lease)
            return leases

    def _renew(self, leases: "list[Lease]") -> None:
        started = boottime()
        try:
            kept = [lease for lease in leases if self._may_go_on(lease, started)]
            if not kept:
                return
            late_s = started - min(lease.next_renewal for lease in kept)
            answers = redis_store.renew([lease.as_renewal() for lease in kept])
            metrics.renewed(answers, late_s=late_s)
            for lease, answer in zip(kept, answers, strict=True):
                self._take(lease, answer, started)
        finally:
            with self._wake:
                for lease in leases:
                    if lease.is_held:
                        lease.next_renewal = max(lease.next_renewal, started + lease.ttl.total_seconds() * _RETRY_AFTER)
                        self._schedule(lease)

    def _may_go_on(self, lease: "Lease", now: float) -> bool:
        max_hold: timedelta = conf.MAX_HOLD
        held = timedelta(seconds=now - lease.granted_at)
        if now >= lease.deadline:
            lease.lose(Incident.Detector.DEADLINE_PASSED)
        elif held > max_hold:
            lease.lose(Incident.Detector.HELD_TOO_LONG)
        elif not lease.thread.is_alive():
            lease.abandon()
        else:
            if held > max_hold / 2:
                lease.warn_of_long_hold(held)
            return True
        return False

    def _take(self, lease: "Lease", answer: redis_store.Verdict | RedisError, started: float) -> None:
        if answer == "renewed":
            lease.still_ours(started)
        elif answer == "other":
            lease.lose(Incident.Detector.RENEWAL_REFUSED)
        elif answer == "absent":
            lease.forgotten()
        else:
            logger.warning(
                "Renewing the lease on %s failed: %s. It is tried again until its deadline.",
                lease.resource,
                answer,
                extra={"event": "lease.renewal_failed", "resource": lease.resource, "token": lease.token},
            )


keeper = Keeper()
os.register_at_fork(after_in_child=keeper.reset)
