"""Stopping a job that lost its lease.

In this order: the lease is marked lost, so that `check()` and every fenced write raise; the SQL in flight is cancelled,
and the next statement is not begun; an exception is raised in the job's thread where that is possible. Whatever slips
through is refused by the fence.

What may be cancelled is a statement, never a COMMIT: cancelled while it waits for a standby, that would be reported
done too early. So statements are watched as they begin and end, which tells the two apart, whoever opened the
transaction; outside one, a statement that writes ends with a commit and is left alone. COPY, what a server-side cursor
fetches later, SQL on another alias, and what psycopg executes without Django's cursor are not watched.
"""

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from leases import fence

if TYPE_CHECKING:
    from leases.lease import Lease

logger = logging.getLogger("leases")

#: How long the server may take to accept a cancellation; another thread waits for it, and the end of the job does.
_CANCEL_TIMEOUT_S = 2.0
#: When a statement that still runs is cancelled again: the first cancellation can overtake it on the way to the server.
_CANCEL_AGAIN_AFTER_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
#: A statement outside a transaction that reads; whatever else there is may write.
_READS = re.compile(r"[\s(]*(SELECT|WITH|VALUES|TABLE)\b", re.IGNORECASE)
_WRITES = re.compile(r"\b(INSERT|UPDATE|DELETE|MERGE|INTO|leases_register|leases_release)\b", re.IGNORECASE)
#: What Django sends between statements; a savepoint that could not be rolled back would keep what it should undo.
_TRANSACTION_CONTROL = ("SAVEPOINT", "RELEASE", "ROLLBACK")


class _Statement:
    """One statement in flight."""

    def __init__(self, sql: object, *, in_transaction: bool) -> None:
        self._sql = sql
        self._in_transaction = in_transaction
        self.is_cancelled = False

    def commits(self) -> bool:
        """Say whether it may write and is its own transaction, so that it ends with a commit."""
        return not self._in_transaction and not (
            isinstance(self._sql, str) and _READS.match(self._sql) and not _WRITES.search(self._sql)
        )


class _Work:
    """What one thread does under one lease, and on which connection."""

    def __init__(self, job: "Job", lease: "Lease") -> None:
        self.job = job
        self.lease = lease
        self.connection: BaseDatabaseWrapper = connections[lease.using]
        self.statement: _Statement | None = None
        self.told = False

    def execute(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        """Execute a statement; raise LeaseLost instead, or in its place if it was cancelled, unless that was raised."""
        if isinstance(sql, str) and sql.startswith(_TRANSACTION_CONTROL):
            return execute(sql, params, many, context)
        # A wrapper of the project's own may execute statements within this one.
        around = self.statement
        statement = _Statement(sql, in_transaction=self.connection.in_atomic_block)
        try:
            # In flight before it looks: a loss after that look finds it.
            self.job.in_flight(self, statement)
            if not self.told and not self.job.is_shielded:
                self.lease.check()
            elif not self.lease.is_held:
                self.job.in_flight(self, None)
            return execute(sql, params, many, context)
        except DatabaseError as error:
            # One that ended by itself before its cancellation came told nobody: the next one does.
            if statement.is_cancelled and fence.sqlstate(error) == fence.QUERY_CANCELED:
                self.lease.check()
            raise
        finally:
            # Twice, because the one asynchronous exception that a lost lease may raise can land in either.
            try:
                self.job.in_flight(self, around)
            finally:
                self.job.in_flight(self, around)

    def stop_watching(self) -> None:
        """Execute no more; somebody's `execute_wrapper()` that ended out of turn may have taken this one with it."""
        with suppress(ValueError):
            self.connection.execute_wrappers.remove(self.execute)


class Job:
    """What one thread does under its leases, with those it lends them to, and how that is stopped from another thread.

    The guard is held while a stop is under way and while a statement or the job ends, so that a stop never hits what
    the thread does next.
    """

    def __init__(self) -> None:
        self._running: dict[Lease, dict[int, _Work]] = {}
        self._shields: Counter[int] = Counter()
        self._interrupts: list[tuple[int, Callable[[], None]]] = []
        self.reset()

    def reset(self) -> None:
        """Have nothing stopped; a forked child's copy of the guard may be locked for ever."""
        # A plain lock: taken by any code in Python, it would stay locked when an asynchronous exception lands in there.
        self._guard = threading.Lock()
        for threads in self._running.values():
            for work in threads.values():
                work.stop_watching()
        self._running = {}

    def started(self, lease: "Lease") -> None:
        """Have the loss of `lease` stop this thread; called in the thread itself, whose connection is meant."""
        work = _Work(self, lease)
        with self._guard:
            self._running.setdefault(lease, {})[threading.get_ident()] = work
            work.connection.execute_wrappers.append(work.execute)

    def ended(self, lease: "Lease", thread_id: int) -> None:
        """Have nothing of `lease` stop that thread any more; waits for a stop that is under way."""
        with self._guard:
            threads = self._running.get(lease, {})
            work = threads.pop(thread_id, None)
            if work is not None:
                work.stop_watching()
            if not threads:
                self._running.pop(lease, None)
            if not any(thread_id in threads for threads in self._running.values()):
                # Of a block whose end was interrupted before it began.
                self._interrupts = [one for one in self._interrupts if one[0] != thread_id]
                self._shields.pop(thread_id, None)

    def stop(self, lease: "Lease") -> None:
        """Cancel the thread's SQL and interrupt it, if it is still working under `lease`."""
        with self._guard:
            if lease not in self._running:
                return
            running: dict[_Work, _Statement] = {}
            for work in self._running[lease].values():
                if work.statement is not None and not work.statement.commits():
                    running[work] = work.statement
                    work.statement.is_cancelled = True
                    self._cancel(work.connection)
            for thread_id, interrupt in self._interrupts:
                if not self._shields[thread_id]:
                    self._call(interrupt)
        for pause_s in _CANCEL_AGAIN_AFTER_S:
            if not running:
                return
            time.sleep(pause_s)
            with self._guard:
                works = self._running.get(lease, {}).values()
                running = {work: begun for work, begun in running.items() if work in works and work.statement is begun}
                for work in running:
                    self._cancel(work.connection)

    def tell(self, lease: "Lease") -> None:
        """Count this thread as told of the loss of `lease`; called where that is raised."""
        work = self._running.get(lease, {}).get(threading.get_ident())
        if work is not None:
            work.told = True

    def in_flight(self, work: _Work, statement: _Statement | None) -> None:
        """Say which statement of `work` runs; None when it ended."""
        with self._guard:
            work.statement = statement

    @property
    def is_shielded(self) -> bool:
        """Whether this thread is; the others that work under the same lease are not."""
        return self._shields[threading.get_ident()] > 0

    @contextmanager
    def shielded(self) -> Iterator[None]:
        thread_id = threading.get_ident()
        with self._guard:
            self._shields[thread_id] += 1
        try:
            yield
        finally:
            with self._guard:
                self._shields[thread_id] = max(0, self._shields[thread_id] - 1)

    @contextmanager
    def interruptible(self, interrupt: Callable[[], None]) -> Iterator[None]:
        def end() -> None:
            with self._guard:
                if mine in self._interrupts:
                    self._interrupts.remove(mine)

        mine = threading.get_ident(), interrupt
        try:
            with self._guard:
                self._interrupts.append(mine)
            yield
        finally:
            # Twice, because the one asynchronous exception that a lost lease may raise can land in either.
            try:
                end()
            finally:
                end()

    def _call(self, interrupt: Callable[[], None]) -> None:
        try:
            interrupt()
        except Exception:
            logger.exception("A job that lost its lease could not be interrupted.")

    def _cancel(self, wrapper: BaseDatabaseWrapper) -> None:
        connection = wrapper.connection
        if connection is None:
            return
        try:
            connection.cancel_safe(timeout=_CANCEL_TIMEOUT_S)
        except Exception as error:
            logger.warning("The SQL of a job that lost its lease could not be cancelled: %s", error)
