"""What the workers did when, read from their log of steps: the attempts, and which of them overlapped. Pure.

An attempt is one holder working on one customer, from the moment the lock or lease was granted to the moment it was
given back or the process was killed. A frozen process has not ended: its work goes on when it wakes.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import Any

FENCED = frozenset({"lease.registered"})
STARTS = frozenset({"naive.locked"}) | FENCED
ENDS = frozenset({"naive.unlocked", "lease.released"})
LOST = "lease.lost"
ISSUED = frozenset({"naive.saved", "invoice.issued"})
KILLED, FROZEN, THAWED = "killed", "frozen", "thawed"


class Cause(StrEnum):
    """Why a customer was invoiced once more."""

    EXPIRED = "lock expired under a running holder"
    FOREIGN = "lock deleted by a former holder"
    DOUBLED = "message came again"
    UNKNOWN = "not known"


@dataclass
class Attempt:
    worker: int
    pid: int
    customer: str
    start: float
    fenced: bool = False
    end: float | None = None
    issued_at: float | None = None
    lost: bool = False
    killed: bool = False

    def lasted_s(self) -> float:
        return 0.0 if self.end is None else self.end - self.start

    def was_refused(self) -> bool:
        """Whether it came to nothing for being overtaken, if it was; a lock refuses nothing."""
        return self.fenced and not self.killed and self.issued_at is None

    def running_at(self, moment: float) -> bool:
        return self.start < moment and (self.end is None or moment < self.end)


@dataclass
class Timeline:
    """One side's run; moments are seconds since it began."""

    attempts: list[Attempt] = field(default_factory=list)
    frozen: list[tuple[int, float, float]] = field(default_factory=list)
    """Worker, from, to."""
    killed: list[tuple[int, float]] = field(default_factory=list)

    def by_customer(self) -> Iterator[tuple[str, list[Attempt]]]:
        ordered = sorted(self.attempts, key=lambda attempt: (attempt.customer, attempt.start))
        for customer, attempts in groupby(ordered, key=lambda attempt: attempt.customer):
            yield customer, list(attempts)

    def overlaps(self) -> Iterator[tuple[Attempt, Attempt]]:
        """Yield each pair of attempts at one customer that were under way at the same time, the earlier first."""
        for _, attempts in self.by_customer():
            for number, later in enumerate(attempts):
                for earlier in attempts[:number]:
                    if earlier.running_at(later.start):
                        yield earlier, later

    def expired_under_holder(self, ttl_s: float, *, renews: bool) -> int:
        """Return how many attempts went on when their lock or lease had ended.

        They say so themselves, or somebody else could start, or they lasted longer than a lock that is never renewed.
        """
        overtaken = {id(earlier) for earlier, later in self.overlaps() if later.start >= earlier.start + ttl_s}
        return sum(
            attempt.lost or id(attempt) in overtaken or (not renews and attempt.lasted_s() > ttl_s)
            for attempt in self.attempts
        )

    def stale_refused(self) -> int:
        """Return how many fenced attempts were overtaken by another one, and ended without an invoice of their own."""
        return len({id(earlier) for earlier, _ in self.overlaps() if earlier.was_refused()})

    def causes(self, ttl_s: float) -> Mapping[str, list[Cause]]:
        """Return the cause of each further invoice of each customer who has more than one, in the attempts' order."""
        found = {}
        for customer, attempts in self.by_customer():
            issuing = [attempt for attempt in attempts if attempt.issued_at is not None]
            if len(issuing) > 1:
                found[customer] = [cause(attempt, attempts, ttl_s) for attempt in issuing[1:]]
        return found


def cause(attempt: Attempt, attempts: Iterable[Attempt], ttl_s: float) -> Cause:
    """Return why `attempt` could start: what had become of the lock of those that were under way."""
    before = [other for other in attempts if other is not attempt and other.start < attempt.start]
    running = [other for other in before if other.running_at(attempt.start)]
    if not running:
        return Cause.DOUBLED
    latest = max(running, key=lambda other: other.start)
    return Cause.EXPIRED if attempt.start >= latest.start + ttl_s * 0.98 else Cause.FOREIGN


def read(path: Path, began_at: float) -> Timeline:
    """Return the timeline of one side from its event file; moments count from `began_at` on the clock of `now()`."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["at"] -= began_at
    return build(sorted(lines, key=lambda line: float(line["at"])))


def now() -> float:
    """Return seconds on a clock that all processes of the machine share and that nobody sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def build(lines: Iterable[Mapping[str, Any]]) -> Timeline:
    timeline = Timeline()
    current: dict[int, Attempt] = {}
    frozen_since: dict[int, float] = {}
    for line in lines:
        event, at, worker, pid = line["event"], line["at"], line["worker"], line["pid"]
        attempt = current.get(pid)
        if event in STARTS:
            if attempt:  # its process went on to other work: it had given up
                attempt.end = at
            current[pid] = Attempt(worker, pid, line["customer"], at, fenced=event in FENCED)
            timeline.attempts.append(current[pid])
        elif event == FROZEN:
            frozen_since[worker] = at
        elif event == THAWED:
            timeline.frozen.append((worker, frozen_since.pop(worker), at))
        elif event == KILLED:
            timeline.killed.append((worker, at))
            if attempt:
                attempt.end, attempt.killed = at, True
                del current[pid]
        elif attempt and event in ISSUED:
            attempt.issued_at = at
        elif attempt and event in (LOST, *ENDS):
            attempt.end, attempt.lost = at, event == LOST
            del current[pid]
    return timeline
