"""The threads that hand messages over. They never touch the database."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from outbox import metrics
from outbox.channels.base import UNREADABLE, Answer, Channel, Deadline, Outcome, Parcel
from outbox.errors import DeadlinePassed, PermanentFailure

logger = logging.getLogger("outbox.send")


class Answered(NamedTuple):
    """One parcel and what became of it; `last` when its micro-batch is through."""

    parcel: Parcel
    claim: int
    answer: Answer
    last: bool


class Senders:
    """A few threads, each with a channel of its own, that take micro-batches and tell what became of each message.

    One that has less than `needed_s` left of its claim is not started.
    """

    def __init__(
        self,
        make_channel: Callable[[], Channel],
        count: int,
        needed_s: float,
        is_stopping: Callable[[], bool],
        tell: Callable[[Answered], None],
    ) -> None:
        self._make_channel = make_channel
        self._needed_s = needed_s
        self._is_stopping = is_stopping
        self._tell = tell
        self._work: queue.SimpleQueue[tuple[int, Sequence[Parcel]] | None] = queue.SimpleQueue()
        self._count = count
        self._threads: list[threading.Thread] = []
        self._sending: dict[int, Deadline] = {}

    @property
    def hang(self) -> bool:
        """Whether a channel still has a message beyond the time in which it may hand it over."""
        return any(deadline.remaining() <= 0 for deadline in list(self._sending.values()))

    def hand(self, claim: int, parcels: Sequence[Parcel]) -> None:
        """Give one micro-batch, whose intent is committed, to the next free thread."""
        if len(self._threads) < self._count:
            thread = threading.Thread(target=self._run, name=f"outbox-sender-{len(self._threads) + 1}", daemon=True)
            thread.start()
            self._threads.append(thread)
        self._work.put((claim, parcels))

    def close(self, timeout: float = 2.0) -> None:
        """Let the threads close their connections; they are not waited for longer than `timeout` seconds in all."""
        ends_at = time.monotonic() + timeout
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join(max(0.0, ends_at - time.monotonic()))

    def _run(self) -> None:
        channel: Channel | None = None
        while (work := self._work.get()) is not None:
            claim, parcels = work
            for parcel in parcels:
                if self._is_stopping() or parcel.deadline.remaining() < self._needed_s:
                    answer = Answer(Outcome.NOT_STARTED)
                else:
                    self._sending[threading.get_ident()] = parcel.deadline
                    channel, answer = self._send(channel, parcel)
                    del self._sending[threading.get_ident()]
                self._tell(Answered(parcel, claim, answer, last=parcel is parcels[-1]))
        if channel is not None:
            channel.close()

    def _send(self, channel: Channel | None, parcel: Parcel) -> tuple[Channel | None, Answer]:
        if channel is None:
            try:
                channel = self._make_channel()
            except BaseException as error:  # as in send(); nothing was handed over yet
                logger.exception("channel %s cannot be made", parcel.channel, extra={"outbox_id": parcel.id})
                detail = f"its channel cannot be made: {type(error).__name__}: {error}"
                return None, Answer(Outcome.NOT_HANDED_OVER, detail, unreachable=True)
        return channel, send(channel, parcel)


def send(channel: Channel, parcel: Parcel) -> Answer:
    """Hand one message over, and turn whatever comes back into an answer. Never raises."""
    began = time.perf_counter()
    try:
        if parcel.payload is UNREADABLE:
            raise PermanentFailure("its stored payload cannot be decoded")
        answer = channel.send(parcel)
        if not isinstance(answer, Answer):
            raise TypeError(f"send() returned {answer!r}, not an Answer")
    except DeadlinePassed as error:
        return Answer(Outcome.NOT_HANDED_OVER, str(error))
    except PermanentFailure as error:
        return Answer(Outcome.REFUSED_PERMANENTLY, str(error))
    except BaseException as error:  # a thread that died silently would leave its message in hand for ever
        logger.exception("channel %s failed at an unknown point", channel.name, extra={"outbox_id": parcel.id})
        return Answer(Outcome.UNKNOWN, f"{type(error).__name__}: {error}")
    finally:
        metrics.send_timer(parcel.channel)(time.perf_counter() - began)
    if answer.outcome is Outcome.ACCEPTED:
        logger.info(
            "handed over %s",
            parcel.dedupe_key,
            extra={"event": "outbox.handed_over", "outbox_id": parcel.id, "channel": parcel.channel},
        )
    return answer
