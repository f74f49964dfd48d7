"""What is known about messages and not yet written down."""

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from datetime import timedelta

from django.db import InterfaceError, InternalError, OperationalError, ProgrammingError

from outbox import metrics, retries, signals
from outbox.channels.base import Answer, Channel, Outcome
from outbox.claims import Intent, Statements
from outbox.models import Message
from outbox.senders import Answered

logger = logging.getLogger("outbox.drain")

NO_DELAY = timedelta(0)

# What says something of the database; anything else says that one answer cannot be written as it is.
_OF_THE_DATABASE = (OperationalError, InterfaceError, InternalError, ProgrammingError)


class Marks:
    """Collects answers, and messages to give back, and writes them down in batches.

    What cannot be written because the database is gone is kept, and written later: a proof counts however late.
    """

    def __init__(self, channel: Channel, statements: Statements, tally: Counter[str]) -> None:
        self._channel = channel
        self._statements = statements
        self._tally = tally
        self._answered: dict[int, list[Answered]] = defaultdict(list)
        self._returning: dict[tuple[int, timedelta], list[int]] = defaultdict(list)

    def __bool__(self) -> bool:
        return bool(self._answered or self._returning)

    def can_wait(self, needed_s: float) -> bool:
        """Whether a claim that comes first finds as much: nothing becomes due by writing them down, and nothing that
        was accepted can be due meanwhile, as it can once its claim ran out. The claims have `needed_s` left."""
        every = (one for answered in self._answered.values() for one in answered)
        return not self._returning and all(
            one.answer.outcome is Outcome.ACCEPTED and one.parcel.deadline.remaining() >= needed_s for one in every
        )

    def answered(self, answered: Answered) -> None:
        """Take note of what became of one message."""
        if answered.answer.outcome is Outcome.NOT_STARTED:
            self.give_back(answered.claim, [answered.parcel.id])
        else:
            self._answered[answered.claim].append(answered)

    def give_back(self, claim: int, ids: Iterable[int], delay: timedelta = NO_DELAY) -> None:
        """Take note of messages that go back, due after `delay`."""
        self._returning[claim, delay].extend(ids)

    def write(self, claim: int = 0, ids: Collection[int] = ()) -> dict[int, Intent]:
        """Write everything down, and declare that the messages `ids` of `claim` are about to be handed over, in the
        commit of the first marks; {id: its intent} for those that may be.

        Raises what the database raises; what was not written then is still here. Whether the intent was committed is
        not known then.
        """
        intents: dict[int, Intent] = {}
        while self._answered or ids:
            answered_claim, answered = next(iter(self._answered.items()), (claim, []))
            answered_ids = [one.parcel.id for one in answered]
            extra = {"claim": answered_claim, "outbox_ids": answered_ids}
            if answered:
                logger.info("marking %d", len(answered), extra={"event": "outbox.marking", **extra})
            accepted = {a.parcel.id: a.answer for a in answered if a.answer.outcome is Outcome.ACCEPTED}
            if accepted or ids:
                intents |= self._mark_sent(answered_claim, accepted, claim, ids)
                answered[:] = [one for one in answered if one.parcel.id not in accepted]
                ids = ()
            while answered:
                try:
                    self._mark_unsent(answered_claim, answered[0])
                except _OF_THE_DATABASE:
                    raise
                except Exception:
                    logger.exception("cannot mark %s; it will be in doubt", answered[0].parcel.id)
                answered.pop(0)
            if answered_ids:
                del self._answered[answered_claim]
                logger.info("marked %d", len(answered_ids), extra={"event": "outbox.marked", **extra})
        while self._returning:
            (returned_claim, delay), returning = next(iter(self._returning.items()))
            self._tally["given_back"] += self._statements.give_back(returned_claim, returning, delay)
            del self._returning[returned_claim, delay]
        return intents

    def _mark_sent(
        self, accepted_claim: int, accepted: dict[int, Answer], claim: int = 0, ids: Collection[int] = ()
    ) -> dict[int, Intent]:
        try:
            sent, intents = self._statements.mark_and_intend(accepted_claim, accepted, claim, ids)
        except _OF_THE_DATABASE:
            raise
        except Exception:
            if not accepted:
                raise
            if len(accepted) == 1 and not ids:
                logger.exception("cannot mark %s as sent; it will be in doubt", list(accepted))
                return {}
            for id, answer in accepted.items():  # one bad answer must not leave its neighbours in doubt
                self._mark_sent(accepted_claim, {id: answer})
            return self._mark_sent(accepted_claim, {}, claim, ids) if ids else {}
        self._tally["sent"] += len(sent)
        if accepted:
            metrics.outcome(self._channel.name, Outcome.ACCEPTED.value, len(accepted))
            self._too_late(accepted_claim, set(accepted) - sent, Outcome.ACCEPTED)
            for id, answer in accepted.items():
                if answer.refused and id in sent:
                    self._tell_of_refused(accepted_claim, id, answer)
        return intents

    def _tell_of_refused(self, claim: int, id: int, answer: Answer) -> None:
        metrics.recipients_refused(self._channel.name, len(answer.refused))
        logger.warning(
            "message %d was accepted, but not for all: %s",
            id,
            "; ".join(f"{who}: {why}" for who, why in answer.refused.items()),
            extra={
                "event": "outbox.recipient_refused",
                "outbox_id": id,
                "channel": self._channel.name,
                "claim": claim,
            },
        )

    def _mark_unsent(self, claim: int, answered: Answered) -> None:
        parcel, answer = answered.parcel, answered.answer
        delay = retries.delay(parcel.attempt, answer.retry_after)
        state = self._statements.mark_unsent(claim, parcel.id, answer, self._channel, delay)
        metrics.outcome(self._channel.name, answer.outcome.value)
        if state is None:
            self._too_late(claim, {parcel.id}, answer.outcome)
            return
        self._tally["retried" if state == "pending" else state] += 1
        if state != "pending":
            metrics.parked(self._channel.name, state)
            signals.parked.send_robust(
                sender=Message,
                message_id=parcel.id,
                channel=self._channel.name,
                dedupe_key=parcel.dedupe_key,
                state=state,
                reason=answer.detail,
                using=self._statements.using,
            )
        logger.log(
            logging.INFO if state == "pending" else logging.ERROR,
            "%s: %s, now %s: %s",
            parcel.dedupe_key,
            answer.outcome.value,
            state,
            answer.detail,
            extra={
                "event": "outbox.retried" if state == "pending" else f"outbox.{state}",
                "outbox_id": parcel.id,
                "channel": self._channel.name,
                "claim": claim,
            },
        )

    def _too_late(self, claim: int, ids: set[int], outcome: Outcome) -> None:
        if ids:
            self._tally["too_late"] += len(ids)
            metrics.too_late(self._channel.name, len(ids))
            logger.warning(
                "the outcome %r of %s came after a newer claim, a decision or the row's deletion, and changed nothing",
                outcome.value,
                sorted(ids),
                extra={"event": "outbox.too_late", "claim": claim, "outbox_ids": sorted(ids)},
            )
