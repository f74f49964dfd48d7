"""What a person decides about a message, written down with a reason: it arrived, send again, requeue, cancel."""

import enum
import logging

from django.db import connections, router, transaction
from django.db.models.functions import Now

from outbox import signals
from outbox.errors import DecisionRefused
from outbox.models import Decision, Message, State
from outbox.statements import statement

logger = logging.getLogger("outbox.decisions")

# From the lock to the commit there are three statements.
MOST_IDLE_MS = 5000


class Action(enum.Enum):
    """The decisions, each from some states only."""

    ARRIVED = "arrived"
    """in doubt → sent: somebody made sure that the receiver has it."""

    SEND_AGAIN = "send again"
    """in doubt → pending: two may arrive, and that is better than none."""

    REQUEUE = "requeue"
    """dead → pending: what was wrong has been put right."""

    CANCEL = "cancel"
    """not sent, in doubt or dead → cancelled: it shall not be sent any more."""


_FROM = {
    Action.ARRIVED: [State.IN_DOUBT],
    Action.SEND_AGAIN: [State.IN_DOUBT],
    Action.REQUEUE: [State.DEAD],
    Action.CANCEL: [State.PENDING, State.CLAIMED, State.IN_DOUBT, State.DEAD],
}
_WRITTEN = ["state", "claimed_until", "sent_at", "available_at", "attempts", "first_attempt_at", "resend_until"]
_TO = {
    Action.ARRIVED: State.SENT,
    Action.SEND_AGAIN: State.PENDING,
    Action.REQUEUE: State.PENDING,
    Action.CANCEL: State.CANCELLED,
}


def may_be(action: Action, message: Message) -> bool:
    """Say whether the message's state allows the decision, as far as it is known; `decide()` asks the database."""
    return message.state in _FROM[action]


def decide(action: Action, message_id: int, *, reason: str, by: str, using: str | None = None) -> Message:
    """Carry the decision out, and write down who took it and why, in one transaction.

    A transaction of the caller's around it may stand still for no more than 5 s from then on: the server ends it, since
    a drainer that has something to mark would wait.

    Raises DecisionRefused, and changes nothing, when the message's state does not allow it: a drainer holds it, it may
    still be on its way, its deadline passed, its payload was pruned; when a receiver of `outbox.signals.resending`
    does not want it sent; or when the reason is empty.
    """
    if not reason.strip():
        raise DecisionRefused(message_id, action.value, "a reason is needed, for those who ask later")
    using = using or router.db_for_write(Message)
    with transaction.atomic(using=using):
        _ask_its_owner(action, message_id, using)
        with connections[using].cursor() as cursor:
            cursor.execute(statement("lock_briefly"), {"idle_ms": MOST_IDLE_MS})
        message = Message.objects.using(using).select_for_update().annotate(now=Now()).filter(id=message_id).first()
        if message is None:
            raise DecisionRefused(message_id, action.value, "there is no such message")
        _refuse_if_too_early_or_late(action, message)
        decision = Decision(message=message, action=action.value, reason=reason, by=by, state_before=message.state)
        message.state = decision.state_after = _TO[action]
        message.claimed_until = None
        if message.state == State.SENT:
            message.sent_at = message.now
        if message.state == State.PENDING:
            message.available_at = message.now
            message.attempts = 0
            message.first_attempt_at = message.resend_until = None
        message.save(update_fields=_WRITTEN)
        decision.save(using=using)
    logger.warning(
        "%s: %s, by %s: %s",
        message.dedupe_key,
        action.value,
        by,
        reason,
        extra={"event": "outbox.decided", "outbox_id": message.id, "channel": message.channel, "action": action.value},
    )
    return message


def _ask_its_owner(action: Action, message_id: int, using: str) -> None:
    message = Message.objects.using(using).only("dedupe_key", "channel").filter(id=message_id).first()
    if message is None or _TO[action] != State.PENDING:
        return
    about = {"dedupe_key": message.dedupe_key, "channel": message.channel, "action": action.value, "using": using}
    for _, refusal in signals.resending.send(sender=Message, **about):
        if refusal:
            raise DecisionRefused(message_id, action.value, str(refusal))


def _refuse_if_too_early_or_late(action: Action, message: Message) -> None:
    def refuse(why: str) -> None:
        raise DecisionRefused(message.id, action.value, why)

    now = message.now  # type: ignore[attr-defined]  # annotated by the query
    if not may_be(action, message):
        held = message.state in (State.CLAIMED, State.SENDING)
        refuse(f"it is {message.get_state_display()}" + (f", held by {message.drainer}" if held else ""))
    if action is Action.SEND_AGAIN and message.available_at > now:
        refuse(f"a drainer may still be handing it over until {message.available_at:%Y-%m-%d %H:%M:%S %Z}")
    if _TO[action] == State.PENDING:
        if message.payload is None:
            refuse("its payload was pruned")
        if message.deadline_at is not None and message.deadline_at <= now:
            refuse(f"its deadline passed at {message.deadline_at:%Y-%m-%d %H:%M:%S %Z}")
