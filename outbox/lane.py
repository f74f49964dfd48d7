"""One channel in one drainer: what it claimed, what it is handing over, what is to be marked."""

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from outbox import channels, metrics
from outbox.breaker import Breaker
from outbox.channels.base import UNREADABLE, Answer, Deadline, Outcome, Parcel
from outbox.claims import Claim, Held, Intent, Statements
from outbox.marking import Marks
from outbox.rate import Rate
from outbox.senders import Answered, Senders
from outbox.wakeup import COALESCE_S

logger = logging.getLogger("outbox.drain")

WHOLE_CHANNEL = ""


@dataclass(frozen=True, slots=True)
class Pace:
    """How much a lane takes: messages per claim, per intent (None: as the channel says), side by side, per second."""

    batch_size: int
    micro_batch: int | None
    concurrency: int
    claim_ttl: timedelta
    poll_interval: timedelta
    per_second: float | None = None


class Lane:
    """Moves one channel's messages. Lanes share the drainer's one database connection, and nothing else: a receiver
    that hangs holds up its own lane only."""

    def __init__(
        self,
        name: str,
        pace: Pace,
        statements: Statements,
        drainer: str,
        tally: Counter[str],
        is_stopping: Callable[[], bool],
        tell: Callable[[Answered], None],
    ) -> None:
        self.name = name
        self._pace = pace
        self._statements = statements
        self._drainer = drainer
        self._tally = tally
        self._channel = channels.channel(name)
        self._micro_batch = pace.micro_batch or self._channel.micro_batch
        # A message is only started with this much time left, so that it ends before its claim does.
        self._needed = min(self._channel.send_timeout, pace.claim_ttl / 2).total_seconds()
        self._senders = Senders(lambda: channels.channel(name), pace.concurrency, self._needed, is_stopping, tell)
        self._waiting: deque[Held] = deque()
        self._claim: Claim | None = None
        self._in_hand = 0
        self._marks = Marks(self._channel, statements, tally)
        self._breaker = Breaker()
        self._rate = Rate(pace.per_second) if pace.per_second else None
        self._next_claim = 0.0
        self._look_again = False
        self.claims = 0

    @property
    def busy(self) -> bool:
        """Whether it still has messages that are claimed, on their way, or to be marked."""
        return bool(self._waiting or self._in_hand or self._marks)

    @property
    def could_take_more(self) -> bool:
        """Whether what it has claimed is on its way, and a thread is free: one send that hangs holds up no other."""
        return not self._waiting and self._in_hand < self._pace.concurrency

    @property
    def could_start(self) -> bool:
        """Whether it has claimed messages, and a free thread for them."""
        return bool(self._waiting) and self._in_hand < self._pace.concurrency

    @property
    def has_news(self) -> bool:
        """Whether there is something the database should hear at once."""
        return bool(self._marks)

    @property
    def wants_to_claim(self) -> bool:
        """Whether it would claim now, and its claim would find as much if what is known were written down first."""
        return self.could_take_more and not self.idle_for() and self._marks.can_wait(self._needed)

    @property
    def hangs(self) -> bool:
        """Whether a send goes on beyond its claim, which its channel's `send_timeout` rules out."""
        return self._senders.hang

    @property
    def empty(self) -> bool:
        """Whether its last claim found less than it asked for."""
        return self._next_claim > 0

    def wake(self) -> None:
        """Look for due messages at the next turn, and once more soon: wake-ups that follow each other are merged."""
        self._next_claim = 0.0
        self._look_again = True

    def idle_for(self) -> float:
        """Seconds until it wants to claim again."""
        return max(0.0, self._next_claim - time.monotonic())

    def held_up_for(self) -> float | None:
        """Seconds until the rate lets the next claimed message go; None when it waits for something else."""
        return self._rate.wait() if self._rate and self.could_start else None

    def claim(self, limit: int | None) -> int:
        """Take the next batch, if the last one is used up and it is time; how many were taken."""
        if self._waiting or self.idle_for() > 0:
            return 0
        if (pause := self._breaker.pause(WHOLE_CHANNEL)) > 0:
            self._next_claim = time.monotonic() + pause
            return 0
        most = 1 if self._breaker.is_open(WHOLE_CHANNEL) else self._pace.batch_size
        wanted = most if limit is None else min(limit, most)
        self._claim = self._statements.claim(self.name, limit=wanted, ttl=self._pace.claim_ttl, drainer=self._drainer)
        self.claims += 1
        taken = len(self._claim.held) if self._claim else 0
        # A batch that came back short says that nothing more is due now, unless it was cut for its size.
        is_full = taken == wanted or bool(self._claim and self._claim.is_cut)
        wait = COALESCE_S * 1.5 if self._look_again else self._pace.poll_interval.total_seconds()
        self._next_claim = 0.0 if is_full else time.monotonic() + wait
        self._look_again = self._look_again and is_full
        if self._claim is None:
            return 0
        self._waiting.extend(self._claim.held)
        self._tally["claimed"] += taken
        self._log("outbox.claimed", f"claimed {taken} of {self.name}", self._claim.number, self._claim.held)
        return taken

    def start(self) -> None:
        """Declare and hand over as much as there are free threads, and write down what is known in the same commit;
        give back what there is no time left for."""
        claim = self._claim
        if claim is None or not self._waiting:
            return
        if claim.deadline.remaining() < self._needed:
            self.give_back()
            return
        # One intent for all free threads: where a commit is slow, it is the commits that count.
        batches: list[list[Held]] = []
        while self._in_hand + len(batches) < self._pace.concurrency and (batch := self._next_batch(claim.number)):
            batches.append(batch)
        declared = [held for batch in batches for held in batch]
        if not declared:
            self.mark()
            return
        intents = self._mark_and_declare(claim.number, [held.id for held in declared])
        skipped = [held.id for held in declared if held.id not in intents]
        if skipped:
            # Not ours any more, past its deadline, or being cancelled right now: whoever has it decides.
            self._marks.give_back(claim.number, skipped)
        self._log("outbox.intent", f"about to hand over {len(intents)}", claim.number, declared)
        started = [[held for held in batch if held.id in intents] for batch in batches]
        self._hand(claim.number, [[self._parcel(held, claim, intents[held.id]) for held in batch] for batch in started])

    def answered(self, answered: Answered) -> None:
        """Take note of what became of one message; `mark()` writes it down."""
        self._marks.answered(answered)
        if answered.answer.outcome is not Outcome.NOT_STARTED:
            self._watch(self._host(answered.parcel.payload), answered.answer)
        else:
            self._next_claim = 0.0  # it is due again at once
        self._in_hand -= answered.last

    def mark(self) -> None:
        """Write down what is known."""
        self._marks.write()

    def give_back(self) -> None:
        """Give back everything that is claimed and not started; the database hears of it with the next `mark()`."""
        if self._claim is not None and self._waiting:
            self._marks.give_back(self._claim.number, [held.id for held in self._waiting])
            self._waiting.clear()
            self._next_claim = 0.0

    def close(self) -> None:
        """End the sending threads."""
        self._senders.close()

    def _hand(self, claim: int, batches: Sequence[Sequence[Parcel]]) -> None:
        for number, parcels in enumerate(batches):
            if parcels:
                try:
                    self._senders.hand(claim, parcels)
                except Exception:  # there is no thread to be had
                    self._marks.give_back(claim, [parcel.id for batch in batches[number:] for parcel in batch])
                    raise
                self._in_hand += 1

    def _parcel(self, held: Held, claim: Claim, intent: Intent) -> Parcel:
        deadline = claim.deadline
        if intent.hand_over_by < deadline.hand_over_by:
            deadline = Deadline(deadline.at, intent.hand_over_by)
        return Parcel(held.id, self.name, held.dedupe_key, held.payload, intent.attempt, deadline)

    def _next_batch(self, claim: int) -> list[Held]:
        """The next few whose receivers may be tried; the others go back."""
        batch: list[Held] = []
        most = self._rate.take(min(self._micro_batch, len(self._waiting))) if self._rate else self._micro_batch
        while self._waiting and len(batch) < most:
            held = self._waiting.popleft()
            host = self._host(held.payload)
            if self._breaker.may_try(host):
                batch.append(held)
            elif host == WHOLE_CHANNEL:
                self._waiting.appendleft(held)
                self.give_back()
            else:
                pause = timedelta(seconds=math.ceil(self._breaker.pause(host)))
                self._marks.give_back(claim, [held.id], pause)
        return batch

    def _host(self, payload: Any) -> str:
        if payload is UNREADABLE:
            return WHOLE_CHANNEL
        try:
            host = self._channel.host(payload)
        except Exception:  # one message must not stop its neighbours; sending it says more
            logger.exception("channel %s cannot say whom an outage would be of", self.name)
            return WHOLE_CHANNEL
        return host if isinstance(host, str) else WHOLE_CHANNEL

    def _watch(self, host: str, answer: Answer) -> None:
        if self._breaker.record(host, unreachable=answer.unreachable):
            away = self._breaker.is_open(host)
            metrics.breaker(self.name, len(self._breaker.open_hosts()))
            logger.log(
                logging.ERROR if away else logging.INFO,
                "The server of channel %s takes %s",
                f"{self.name} ({host})" if host else self.name,
                f"nothing, and is tried rarely now: {answer.detail}" if away else "messages again",
                extra={"event": f"outbox.breaker_{'opened' if away else 'closed'}", "channel": self.name, "host": host},
            )

    def _mark_and_declare(self, claim: int, ids: list[int]) -> dict[int, Intent]:
        try:
            return self._marks.write(claim, ids)
        except Exception:
            # Whether it was committed is not known; that nothing was handed over is.
            self._marks.give_back(claim, ids)
            self.give_back()
            raise

    def _log(self, event: str, words: str, claim: int, messages: list[Held]) -> None:
        if logger.isEnabledFor(logging.INFO):
            ids = [held.id for held in messages]
            extra = {"event": event, "claim": claim, "channel": self.name, "outbox_ids": ids}
            logger.info("%s", words, extra=extra)
