"""Stopping a job that lost its lease.

In this order: the lease is marked lost, so that `check()` and every fenced write raise; the SQL in flight is cancelled;
an exception is raised in the job's thread where that is possible. Whatever slips through is refused by the fence.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

if TYPE_CHECKING:
    from leases.lease import Lease

logger = logging.getLogger("leases")

#: How long the server may take to accept a cancellation; another thread waits for it, and the end of the job does.
_CANCEL_TIMEOUT_S = 2.0


class Job:
    """What one thread does under its leases, with those it lends them to, and how that is stopped from another thread.

    The guard is held while a stop is under way and while the job ends, so that a stop never hits the thread's next job.
    """

    def __init__(self) -> None:
        self.reset()
        self._committing: set[int] = set()
        self._shields = 0
        self._interrupt: Callable[[], None] | None = None

    def reset(self) -> None:
        """Have nothing stopped; a forked child's copy of the guard may be locked for ever."""
        self._guard = threading.Lock()
        self._running: dict[Lease, dict[int, BaseDatabaseWrapper]] = {}

    def started(self, lease: "Lease") -> None:
        """Have the loss of `lease` stop this thread; called in the thread itself, whose connection is meant."""
        with self._guard:
            self._running.setdefault(lease, {})[threading.get_ident()] = connections[lease.using]

    def ended(self, lease: "Lease", thread_id: int) -> None:
        """Have nothing of `lease` stop that thread any more; waits for a stop that is under way."""
        with self._guard:
            threads = self._running.get(lease, {})
            threads.pop(thread_id, None)
            if not threads:
                self._running.pop(lease, None)

    def stop(self, lease: "Lease") -> None:
        """Cancel the thread's SQL and interrupt it, if it is still working under `lease`."""
        with self._guard:
            if lease not in self._running:
                return
            for thread_id, wrapper in self._running[lease].items():
                # A commit is left alone: cancelled while it waits for a standby, it would be reported done too early.
                if thread_id not in self._committing:
                    self._cancel(wrapper)
            if self._interrupt is not None and not self._shields:
                self._interrupt()

    @contextmanager
    def committing(self) -> Iterator[Callable[[], None]]:
        """Give a function that says: from here on this thread commits; until this ends, its SQL is not cancelled."""
        thread_id = threading.get_ident()

        def begin() -> None:
            with self._guard:
                self._committing.add(thread_id)

        try:
            yield begin
        finally:
            with self._guard:
                self._committing.discard(thread_id)

    @contextmanager
    def shielded(self) -> Iterator[None]:
        with self._guard:
            self._shields += 1
        try:
            yield
        finally:
            with self._guard:
                self._shields -= 1

    @contextmanager
    def interruptible(self, interrupt: Callable[[], None]) -> Iterator[None]:
        with self._guard:
            before, self._interrupt = self._interrupt, interrupt
        try:
            yield
        finally:
            with self._guard:
                self._interrupt = before

    def _cancel(self, wrapper: BaseDatabaseWrapper) -> None:
        connection = wrapper.connection
        if connection is None:
            return
        try:
            connection.cancel_safe(timeout=_CANCEL_TIMEOUT_S)
        except Exception as error:
            logger.warning("The SQL of a job that lost its lease could not be cancelled: %s", error)
