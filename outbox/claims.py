"""The statements: what a drainer says to the database, each its own transaction. The SQL, with its reasons: sql/."""

import json
import math
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from django.db import connections

from outbox import metrics
from outbox.channels.base import UNREADABLE, Answer, Channel, Deadline, boottime
from outbox.conf import settings
from outbox.statements import statement

# Two clocks measure a claim; the drainer stops this share of its length before the database would.
MARGIN = 0.1

# The server hangs up on a drainer that does not go on reading what it claims; a third of the claim if that is shorter.
LONGEST_READING = timedelta(seconds=10)

# Of payloads as they are stored, for one claim: all that are claimed are in memory at once, decoded.
MOST_BYTES_PER_CLAIM = 16_000_000

# A row that another drainer's claim just looks at is free again within milliseconds.
TRIES_FOR_LOCKED = 6
PAUSE_FOR_LOCKED_S = 0.01


class Held(NamedTuple):
    """A claimed message, before its intent."""

    id: int
    dedupe_key: str
    payload: Any


class Intent(NamedTuple):
    """What a message's intent allows: this attempt, until this reading of `boottime()`."""

    attempt: int
    hand_over_by: float


@dataclass(slots=True)
class Claim:
    """What one claim took: its number, how long it may be used, the messages oldest due first, and whether it took no
    more because they are large."""

    number: int
    deadline: Deadline
    held: list[Held] = field(default_factory=list)
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Swept:
    """A message that the sweep took away from whoever held it, or that ran out of time."""

    id: int
    channel: str
    dedupe_key: str
    state: str
    claim: int | None


class Statements:
    """The drainer's statements on one database, outside any transaction of the caller's."""

    def __init__(self, using: str) -> None:
        self.using = using

    def claim(self, channel: str, *, limit: int, ttl: timedelta, drainer: str) -> Claim | None:
        """Take up to `limit` due messages, fewer when they are large; None when none is due."""
        start = boottime()  # before the database starts to count, so that this deadline is the earlier one
        reading_ms = round(min(ttl / 3, LONGEST_READING).total_seconds() * 1000)
        values = {
            "channel": channel,
            "limit": limit,
            "bytes": MOST_BYTES_PER_CLAIM,
            "ttl": ttl,
            "drainer": drainer,
            "reading_ms": reading_ms,
        }
        rows = self._rows("claim", values)
        if not rows:
            return None
        rows.sort(key=lambda row: (-row[4], row[1]))
        seconds = ttl.total_seconds() * (1 - MARGIN)
        held = [Held(id, dedupe_key, _decoded(payload)) for _, id, dedupe_key, payload, *_ in rows]
        is_cut = sum(row[5] for row in rows) >= MOST_BYTES_PER_CLAIM
        metrics.claimed(channel, oldest_lag_s=rows[0][4])
        return Claim(rows[0][0], Deadline.after(seconds, start), held, is_cut)

    def mark_and_intend(
        self, accepted_claim: int, accepted: Mapping[int, Answer], claim: int, ids: Collection[int]
    ) -> tuple[set[int], dict[int, Intent]]:
        """Mark what was accepted, and declare in the same commit that `ids` are about to be handed over.

        Gives the ids that are sent now (the others are under a newer claim, or decided), and {id: its intent} for those
        that may be handed over.
        """
        start = boottime()  # before the database looks how much time is left
        marks = {
            "accepted_claim": accepted_claim,
            "accepted": id_array(accepted),
            "provider_ids": json.dumps({id: text(a.provider_id) for id, a in accepted.items() if a.provider_id}),
            "refused": json.dumps(
                {
                    id: {text(who): text(why) for who, why in a.refused.items()}
                    for id, a in accepted.items()
                    if a.refused
                }
            ),
        }
        rows = self._rows_of_all("mark_and_intend", ids, {**marks, "claim": claim})
        intents = {
            id: Intent(attempt, math.inf if left_s is None else start + left_s)
            for id, attempt, left_s in rows
            if attempt is not None
        }
        return {id for id, attempt, _ in rows if attempt is None}, intents

    def mark_unsent(self, claim: int, id: int, answer: Answer, channel: Channel, delay: timedelta) -> str | None:
        """Mark one message that was not accepted; its new state, None when it is not this claim's any more."""
        values = {
            "claim": claim,
            "id": id,
            "outcome": answer.outcome.value,
            "detail": text(answer.detail),
            "refund": answer.unreachable,
            "delay": delay,
            "max_attempts": settings.MAX_ATTEMPTS,
            "retry_for": settings.RETRY_FOR,
            "key_window": channel.key_window,
            "resend_always": channel.resend_when_in_doubt,
        }
        rows = self._rows("mark_unsent", values)
        return rows[0][0] if rows else None

    def give_back(self, claim: int, ids: Iterable[int], delay: timedelta = timedelta(0)) -> int:
        """Give back messages that were surely not started, due after `delay`; how many went back."""
        return len(self._rows_of_all("give_back", ids, {"claim": claim, "delay": delay}))

    def sweep(self, channels: Iterable[Channel]) -> list[Swept]:
        """Take away what is held beyond its time, and end what may not be sent any more."""
        windows = {
            channel.name: None if channel.resend_when_in_doubt else channel.key_window.total_seconds()
            for channel in channels
            if channel.resend_when_in_doubt or channel.key_window
        }
        rows = self._rows("sweep", {"windows": json.dumps(windows), "max_ttl": settings.MAX_CLAIM_TTL})
        return [Swept(*row) for row in rows + self._rows("expire", {})]

    def _rows_of_all(self, name: str, ids: Iterable[int], values: dict[str, Any]) -> list[tuple[Any, ...]]:
        """The rows for `ids`, asked for again while some are missing.

        A claim of another drainer that began before ours was committed locks our rows, finds that they are not pending
        any more, and lets go of them when it ends. The statements pass locked rows by; these come a moment later.
        """
        missing = set(ids)
        rows: list[tuple[Any, ...]] = []
        for tries_left in reversed(range(TRIES_FOR_LOCKED)):
            found = self._rows(name, {**values, "ids": id_array(sorted(missing))})
            rows += found
            values = {**values, "accepted": id_array(())}  # the marks are committed
            missing -= {row[0] for row in found}
            if not missing:
                break
            if tries_left:
                time.sleep(PAUSE_FOR_LOCKED_S)
        return rows

    def _rows(self, name: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        with connections[self.using].cursor() as cursor:
            cursor.execute(statement(name), values)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows


def id_array(ids: Iterable[int]) -> str:
    """As PostgreSQL reads an array: psycopg takes ten times as long over a list, which it looks at one by one."""
    return f"{{{','.join(map(str, ids))}}}"


def _decoded(payload: str) -> Any:
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        return UNREADABLE


def text(value: object, limit: int = 2000) -> str:
    """What a receiver said, as PostgreSQL can store it: a stray byte in an answer must not undo its mark, nor must a
    channel that gives a number or an exception for words."""
    return str(value).replace("\0", "").encode("utf-8", "replace").decode()[:limit]
