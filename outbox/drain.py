"""The loop: claim, declare, hand over, mark, sweep; until told to stop, or until there is nothing left."""

import enum
import logging
import os
import queue
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from django.db import InterfaceError, InternalError, OperationalError, connections

from outbox import channels, forgetting, metrics
from outbox.channels.base import boottime
from outbox.claims import Statements
from outbox.errors import DatabaseForgot, InsideTransaction
from outbox.inspection import status
from outbox.lane import Lane, Pace
from outbox.senders import Answered
from outbox.sweeping import Sweeper
from outbox.wakeup import Listener

logger = logging.getLogger("outbox.drain")

FIRST_BACKOFF = 0.1
LONGEST_BACKOFF = 10.0
LONGEST_WAIT_STOPPING = 1.0
MEASURE_EVERY = 15.0


class Until(enum.Enum):
    """When a drainer ends by itself."""

    ONE_BATCH = "once"
    EMPTY = "until empty"
    STOPPED = "watch"


class Word(enum.Enum):
    """What the loop is told while it waits."""

    WAKE = "look for due messages"
    STOP = "look whether to stop"


@dataclass(slots=True)
class Report:
    """What a drainer did: how many messages were claimed, sent, retried, dead, in_doubt, given_back, swept, too_late.

    database_lost: it ended because the database was gone, with messages it could not mark or give back.
    database_forgot: it ended because the database lost a part of its history; what is to be done.
    """

    tally: Counter[str] = field(default_factory=Counter)
    database_lost: bool = False
    database_forgot: str = ""


def drainer_name() -> str:
    """This process, as people find it: host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


class Drainer:
    """Moves messages out, on one database connection, with any number of other drainers beside it.

    `run()` returns when there is no more to do, or after `stop()`: then the messages in hand are finished and marked,
    and all others are given back at once, with their attempts as before.
    """

    def __init__(
        self,
        *,
        using: str,
        names: Sequence[str],
        pace: Pace,
        until: Until = Until.STOPPED,
        limit: int | None = None,
        max_runtime: timedelta | None = None,
        listen: bool = False,
        measure: bool = False,
        progress: Callable[[Counter[str]], None] = lambda tally: None,
    ) -> None:
        self.report = Report()
        self._using = using
        self._until = until
        self._left = limit
        self._ends_at = None if max_runtime is None else time.monotonic() + max_runtime.total_seconds()
        self._progress = progress
        self._claim_ttl = pace.claim_ttl
        self._is_stopping = False  # no Event, whose lock a signal handler would wait for
        self._stopped_at = 0.0
        # Answers of the senders, and words to the loop. SimpleQueue.put may be called from a signal handler.
        self._inbox: queue.SimpleQueue[Answered | Word] = queue.SimpleQueue()
        self._statements = Statements(using)
        shared = (self._statements, drainer_name(), self.report.tally, lambda: self._is_stopping, self._inbox.put)
        self._lanes = [Lane(name, pace, *shared) for name in names]
        self._by_name = {lane.name: lane for lane in self._lanes}
        self._sweeper = Sweeper(self._statements, pace.claim_ttl)
        self._listener = Listener(using, self.wake) if listen else None
        self._measures = measure
        # Nobody drains a channel that is not configured, so every drainer tells of its messages.
        self._unknown: set[str] = set()
        self._next_measure = 0.0
        self._backoff = 0.0

    def stop(self) -> None:
        """End soon: nothing new is started. May be called from a signal handler or another thread."""
        if not self._is_stopping:
            self._stopped_at = boottime()
        self._is_stopping = True
        self._inbox.put(Word.STOP)

    def wake(self) -> None:
        """Look for due messages now. May be called from any thread."""
        self._inbox.put(Word.WAKE)

    def run(self) -> Report:
        """Drain. Returns what was done; a lost database ends it only when stopping, or when not watching.

        Any other exception stops it like `stop()`, and is raised when what is in hand is finished and marked.
        InsideTransaction is raised before anything is done.
        """
        connection = connections[self._using]
        has_begun = connection.connection is not None and not connection.autocommit
        if has_begun or not connection.settings_dict["AUTOCOMMIT"]:
            raise InsideTransaction(self._using)
        failure: Exception | None = None
        if self._listener:
            self._listener.start()
        try:
            while not self._done():
                if self._ends_at is not None and time.monotonic() >= self._ends_at and not self._is_stopping:
                    self.stop()
                try:
                    self._turn()
                    self._backoff = 0.0
                    if failure is None and not any(lane.hangs for lane in self._lanes):
                        self._progress(self.report.tally)
                # InternalError: a connection that outlived a failover leads to a standby, which is read-only.
                except (OperationalError, InterfaceError, InternalError) as error:
                    if not self._survives(error):
                        self.report.database_lost = True
                        break
                except Exception as error:
                    if failure is not None:
                        raise
                    failure = error
                    if any(lane.busy for lane in self._lanes):  # otherwise it is raised right away
                        logger.exception("stops, and marks what is in hand first")
                    self.stop()
        finally:
            self._is_stopping = True
            if self._listener:
                self._listener.end()
            for lane in self._lanes:
                lane.close()
        if failure is not None:
            raise failure
        return self.report

    def _turn(self) -> None:
        for lane in self._lanes:
            if self._is_stopping:
                lane.give_back()
            # Otherwise the next intent takes the marks along, also that of a batch which is claimed first; not while
            # the database makes trouble in between.
            intends = lane.could_start or (lane.wants_to_claim and self._may_claim(lane))
            if self._backoff or self._is_stopping or not intends:
                lane.mark()
        if not self._is_stopping:
            self._verify()
        if not self._is_stopping:
            self._sweep()
            self._measure()
            for lane in self._lanes:
                if self._may_claim(lane):
                    taken = lane.claim(self._left)
                    if self._left is not None:
                        self._left -= taken
                lane.start()
                lane.mark()
        self._listen(self._wait())

    def _verify(self) -> None:
        """Claim nothing from a database that forgot; what is in hand is finished and marked."""
        try:
            forgetting.verify(self._using)
        except DatabaseForgot as error:
            logger.critical("%s", error, extra={"event": "outbox.database_forgot"})
            self.report.database_forgot = str(error)
            self.stop()

    def _measure(self) -> None:
        if self._measures and time.monotonic() >= self._next_measure:
            statuses = status(self._using)
            self._unknown |= {status.channel for status in statuses} - set(channels.names())
            metrics.stands([*self._by_name, *self._unknown], statuses)
            self._next_measure = time.monotonic() + MEASURE_EVERY

    def _may_claim(self, lane: Lane) -> bool:
        if self._left == 0:
            return False
        return not (self._until is Until.ONE_BATCH and lane.claims) and not (self._until is Until.EMPTY and lane.empty)

    def _done(self) -> bool:
        if self._stopped_too_long_ago and not any(lane.has_news for lane in self._lanes):
            return True
        if any(lane.busy for lane in self._lanes):
            return False
        if self._is_stopping or self._left == 0:
            return True
        return self._until is not Until.STOPPED and not any(self._may_claim(lane) for lane in self._lanes)

    @property
    def _stopped_too_long_ago(self) -> bool:
        """Whether no claim from before the stop can still be running: what is in hand now hangs, and is swept."""
        return self._is_stopping and boottime() - self._stopped_at > self._claim_ttl.total_seconds()

    def _wait(self) -> float:
        """Seconds until something is to be done without being told."""
        if self._done() or any(lane.has_news for lane in self._lanes):
            return 0.0
        if self._is_stopping:
            return LONGEST_WAIT_STOPPING
        now = time.monotonic()
        waits = [self._sweeper.wait()]
        waits += [lane.idle_for() for lane in self._lanes if lane.could_take_more and self._may_claim(lane)]
        waits += [wait for lane in self._lanes if (wait := lane.held_up_for()) is not None]
        if self._ends_at is not None:
            waits.append(self._ends_at - now)
        return max(0.0, min(waits))

    def _listen(self, timeout: float) -> None:
        """Wait for the first answer, and take all that are there."""
        try:
            answered = self._inbox.get(timeout=timeout) if timeout else self._inbox.get_nowait()
            while True:
                if isinstance(answered, Answered):
                    self._by_name[answered.parcel.channel].answered(answered)
                elif answered is Word.WAKE:
                    for lane in self._lanes:
                        lane.wake()
                answered = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _sweep(self) -> None:
        again, parked = self._sweeper.sweep()
        self.report.tally["swept"] += again.total()
        self.report.tally.update(parked)
        for name in again:
            if name in self._by_name:
                self._by_name[name].wake()

    def _survives(self, error: Exception) -> bool:
        """Wait before the next try, longer each time; False when it is time to give up."""
        connections[self._using].close()
        if self._stopped_too_long_ago:
            return False
        if self._until is not Until.STOPPED and self._backoff >= LONGEST_BACKOFF:
            return False
        self._backoff = min(LONGEST_BACKOFF, max(FIRST_BACKOFF, self._backoff * 2))
        wait = self._backoff * random.uniform(0.5, 1.0)  # noqa: S311
        logger.error(
            "the database does not answer; next try in %.1f s: %s",
            wait,
            str(error).strip(),
            extra={"event": "outbox.database_lost"},
        )
        # Answers of messages on their way are taken while it waits, so that nothing of them is lost.
        until = time.monotonic() + wait
        while not self._done() and (left := until - time.monotonic()) > 0:
            self._listen(left)
        return True
