"""One channel in one drainer: what it claimed, what it is handing over, what is to be marked."""

import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from django.db import DataError, IntegrityError

from outbox import channels, retries
from outbox.channels.base import Answer, Outcome, Parcel
from outbox.claims import Claim, Held, Statements
from outbox.senders import Answered, Senders

logger = logging.getLogger("outbox.drain")


@dataclass(frozen=True, slots=True)
class Pace:
    """How much a lane takes at once: messages per claim, per intent (None: as the channel says), and side by side."""

    batch_size: int
    micro_batch: int | None
    concurrency: int
    claim_ttl: timedelta
    poll_interval: timedelta


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
        stopping: threading.Event,
        tell: Callable[[Answered], None],
    ) -> None:
        self.name = name
        self._pace = pace
        self._statements = statements
        self._drainer = drainer
        self._tally = tally
        self._channel = channels.channel(name)
        self._micro_batch = pace.micro_batch or self._channel.micro_batch
        self._senders = Senders(lambda: channels.channel(name), pace.concurrency, stopping, tell)
        # A message is only started with this much time left, so that it ends before its claim does.
        self._needed = min(self._channel.send_timeout, pace.claim_ttl / 2).total_seconds()
        self._waiting: deque[Held] = deque()
        self._claim: Claim | None = None
        self._in_hand = 0
        self._answered: dict[int, list[Answered]] = defaultdict(list)
        self._returning: dict[int, list[int]] = defaultdict(list)
        self._next_claim = 0.0
        self.claims = 0

    @property
    def busy(self) -> bool:
        """Whether it still has messages that are claimed, on their way, or to be marked."""
        return bool(self._waiting or self._in_hand or self._answered or self._returning)

    @property
    def has_news(self) -> bool:
        """Whether there is something the database should hear at once."""
        return bool(self._answered or self._returning)

    @property
    def empty(self) -> bool:
        """Whether its last claim found less than it asked for."""
        return self._next_claim > 0

    def wake(self) -> None:
        """Look for due messages at the next turn."""
        self._next_claim = 0.0

    def idle_for(self) -> float:
        """Seconds until it wants to claim again."""
        return max(0.0, self._next_claim - time.monotonic())

    def claim(self, limit: int | None) -> int:
        """Take the next batch, if the last one is used up and it is time; how many were taken."""
        if self._waiting or self.idle_for() > 0:
            return 0
        wanted = self._pace.batch_size if limit is None else min(limit, self._pace.batch_size)
        self._claim = self._statements.claim(self.name, limit=wanted, ttl=self._pace.claim_ttl, drainer=self._drainer)
        self.claims += 1
        taken = len(self._claim.held) if self._claim else 0
        # A batch that came back short says that nothing more is due now.
        self._next_claim = 0.0 if taken == wanted else time.monotonic() + self._pace.poll_interval.total_seconds()
        if self._claim is None:
            return 0
        self._waiting.extend(self._claim.held)
        self._tally["claimed"] += taken
        self._log("outbox.claimed", f"claimed {taken} of {self.name}", self._claim.number, self._claim.held)
        return taken

    def start(self) -> None:
        """Declare and hand over as much as there are free threads; give back what there is no time left for."""
        claim = self._claim
        while self._waiting and self._in_hand < self._pace.concurrency and claim is not None:
            if claim.deadline.remaining() < self._needed:
                self.give_back()
                return
            batch = [self._waiting[i] for i in range(min(self._micro_batch, len(self._waiting)))]
            attempts = self._declare(claim.number, [held.id for held in batch])
            for _ in batch:
                self._waiting.popleft()
            parcels = [
                Parcel(held.id, self.name, held.dedupe_key, held.payload, attempts[held.id], claim.deadline)
                for held in batch
                if held.id in attempts
            ]
            skipped = [held.id for held in batch if held.id not in attempts]
            if skipped:
                # Not ours any more, past its deadline, or being cancelled right now: whoever has it decides.
                self._returning[claim.number].extend(skipped)
            if parcels:
                self._log("outbox.intent", f"about to hand over {len(parcels)}", claim.number, batch)
                self._in_hand += 1
                self._senders.hand(claim.number, parcels)

    def answered(self, answered: Answered) -> None:
        """Take note of what became of one message; `mark()` writes it down."""
        if answered.answer.outcome is Outcome.NOT_STARTED:
            self._returning[answered.claim].append(answered.parcel.id)
        else:
            self._answered[answered.claim].append(answered)
        self._in_hand -= answered.last

    def mark(self) -> None:
        """Write down what is known. What cannot be written now is kept, and tried again at the next turn."""
        while self._answered:
            claim, answered = next(iter(self._answered.items()))
            ids = [one.parcel.id for one in answered]
            logger.info("marking %d", len(ids), extra={"event": "outbox.marking", "claim": claim, "outbox_ids": ids})
            accepted = {a.parcel.id: a.answer for a in answered if a.answer.outcome is Outcome.ACCEPTED}
            if accepted:
                self._mark_sent(claim, accepted)
            # From here on only the others are left to write, also after an error in between.
            answered[:] = [one for one in answered if one.parcel.id not in accepted]
            while answered:
                self._mark_unsent(claim, answered[0])
                answered.pop(0)
            del self._answered[claim]
            logger.info("marked %d", len(ids), extra={"event": "outbox.marked", "claim": claim, "outbox_ids": ids})
        while self._returning:
            claim, returning = next(iter(self._returning.items()))
            self._tally["given_back"] += self._statements.give_back(claim, returning)
            del self._returning[claim]

    def give_back(self) -> None:
        """Give back everything that is claimed and not started; the database hears of it with the next `mark()`."""
        if self._claim is not None and self._waiting:
            self._returning[self._claim.number].extend(held.id for held in self._waiting)
            self._waiting.clear()
            self._next_claim = 0.0

    def close(self) -> None:
        """End the sending threads."""
        self._senders.close()

    def _declare(self, claim: int, ids: list[int]) -> dict[int, int]:
        try:
            return self._statements.intend(claim, ids)
        except Exception:
            # Whether it was committed is not known; that nothing was handed over is.
            self.give_back()
            raise

    def _mark_sent(self, claim: int, accepted: dict[int, Answer]) -> None:
        try:
            sent = self._statements.mark_sent(claim, accepted)
        except (DataError, IntegrityError):
            if len(accepted) > 1:  # one bad answer must not leave its neighbours in doubt
                for id, answer in accepted.items():
                    self._mark_sent(claim, {id: answer})
                return
            logger.exception("cannot mark %s as sent; it will be in doubt", list(accepted))
            return
        self._tally["sent"] += len(sent)
        self._too_late(claim, set(accepted) - sent)

    def _mark_unsent(self, claim: int, answered: Answered) -> None:
        parcel, answer = answered.parcel, answered.answer
        delay = retries.delay(parcel.attempt, answer.retry_after)
        state = self._statements.mark_unsent(claim, parcel.id, answer, self._channel, delay)
        if state is None:
            self._too_late(claim, {parcel.id}, answer)
            return
        self._tally[state if state != "pending" else "retried"] += 1
        level = logging.INFO if state == "pending" else logging.ERROR
        logger.log(
            level,
            "%s: %s, now %s: %s",
            parcel.dedupe_key,
            answer.outcome.value,
            state,
            answer.detail,
            extra={
                "event": "outbox.in_doubt" if state == "in_doubt" else f"outbox.{state}",
                "outbox_id": parcel.id,
                "channel": self.name,
                "claim": claim,
            },
        )

    def _too_late(self, claim: int, ids: set[int], answer: Answer | None = None) -> None:
        if ids:
            self._tally["too_late"] += len(ids)
            logger.warning(
                "the outcome %s of %s came after a newer claim or a decision, and changed nothing",
                answer.outcome.value if answer else "accepted",
                sorted(ids),
                extra={"event": "outbox.too_late", "claim": claim, "outbox_ids": sorted(ids)},
            )

    def _log(self, event: str, words: str, claim: int, messages: list[Held]) -> None:
        if logger.isEnabledFor(logging.INFO):
            ids = [held.id for held in messages]
            extra = {"event": event, "claim": claim, "channel": self.name, "outbox_ids": ids}
            logger.info("%s", words, extra=extra)
