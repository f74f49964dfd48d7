"""What a channel is: how to prepare a message when it is published, and how to hand it over later."""

import enum
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from outbox.errors import DeadlinePassed


class Outcome(enum.Enum):
    """What is known after handing a message over. When in doubt, it is UNKNOWN: never guess."""

    ACCEPTED = "accepted"
    """The receiver said that it has the message."""

    REFUSED_TEMPORARILY = "refused temporarily"
    """The receiver said no for now. It is tried again."""

    REFUSED_PERMANENTLY = "refused permanently"
    """The receiver said no for good. A person looks at it."""

    NOT_HANDED_OVER = "not handed over"
    """Something failed at a point where the receiver cannot have the message. It is tried again."""

    UNKNOWN = "unknown"
    """The receiver may have it. It is in doubt."""

    NOT_STARTED = "not started"
    """The drainer was told to stop first; the attempt does not count. Never returned by a channel."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one attempt.

    `detail` is for people: the receiver's words or the error. `provider_id` is what the receiver calls the message.
    `refused` names single recipients that were refused while the message was accepted, with the receiver's words.
    `retry_after` is how long the receiver asked to wait. `unreachable` says that the receiver was not there at all:
    such an attempt says nothing about the message and is not counted.
    """

    outcome: Outcome
    detail: str = ""
    provider_id: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)
    retry_after: timedelta | None = None
    unreachable: bool = False


# CLOCK_MONOTONIC stands still while a machine is suspended, and a claim does not.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    """Seconds on this machine's clock that nobody sets and that goes on while the machine is suspended."""
    return time.clock_gettime(_CLOCK)


@dataclass(frozen=True, slots=True)
class Deadline:
    """Until when a drainer may hand a message over: the end of its claim less a margin, on its own boot clock.

    `hand_over_by` is the message's own last moment, if that is earlier: what was handed over by then may be answered
    until the claim ends.
    """

    at: float
    hand_over_by: float = math.inf

    @classmethod
    def after(cls, seconds: float, start: float | None = None) -> "Deadline":
        """`seconds` after `start`, a reading of `boottime()`; default now."""
        return cls((boottime() if start is None else start) + seconds)

    def remaining(self) -> float:
        """Seconds left of the claim, negative once it ended."""
        return self.at - boottime()

    def check(self) -> None:
        """Raise DeadlinePassed if it passed. Call it right before the point of no return, with nothing in between."""
        if min(self.at, self.hand_over_by) <= boottime():
            raise DeadlinePassed


UNREADABLE: Any = object()
"""Stands for a stored payload that cannot be decoded. Such a message is dead, and no channel sees it."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """One message on its way: what a channel needs to hand it over."""

    id: int
    channel: str
    dedupe_key: str
    payload: Any
    attempt: int
    deadline: Deadline


class Channel(ABC):
    """One way out. Made once per sending thread, from OUTBOX_CHANNELS, as `backend(name, **OPTIONS)`.

    A subclass says how content becomes a payload, and how a payload is handed over. It may keep a connection between
    sends, and gives it back in `close()`. No database transaction is open while `send()` runs.
    """

    key_window: timedelta = timedelta(0)
    """How long the receiver recognises a repeated message by its key (`Parcel.dedupe_key`, the same on every attempt).
    Inside the window an unknown outcome is tried again; after it, the message is in doubt. Zero: no such key."""

    micro_batch: int = 1
    """How many messages are declared as being sent in one commit. More is faster; a crash leaves as many in doubt."""

    resend_when_in_doubt: bool = False
    """Set from IN_DOUBT: the owner of this project prefers two messages to none."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def prepare(self, content: Mapping[str, Any], *, dedupe_key: str) -> Any:
        """The payload for `content`: JSON, complete, so that every attempt hands over the same bytes.

        Called by publish() in the caller's transaction: no network. Raises InvalidContent when it cannot be sent.
        """

    @abstractmethod
    def send(self, parcel: Parcel) -> Answer:
        """Hand one message over, once, and say what happened.

        Calls `parcel.deadline.check()` right before the point of no return, and lets DeadlinePassed out. Raises
        PermanentFailure for what no retry can cure. Any other exception is taken as UNKNOWN.
        """

    def host(self, payload: Any) -> str:
        """Whom an outage would be of, where a channel has many receivers; "" for the channel as a whole."""
        return ""

    @property
    def send_timeout(self) -> timedelta:
        """How long one send takes at most before it is certain or unknown; nothing is started with less time left."""
        return timedelta(seconds=30)

    def close(self) -> None:  # noqa: B027  # most channels have nothing to give back
        """Give back what is kept between sends. Never raises."""
