"""Dead letters that do not vanish.

A broker keeps a message that failed for good for a week and then deletes it, unseen. Here each one becomes a row with
its reason, until a person replays it or throws it away.
"""

import json
import logging
import math
import traceback
from typing import Any

import dramatiq
from django.db import connections, router

from leases.jobs.discovery import import_actors
from leases.jobs.errors import ActorUnknown, AlreadyDone, AlreadyReplayed, KeyTaken, LetterInexact
from leases.jobs.models import DeadLetter, Receipt
from leases.jobs.repeats import Once
from leases.jobs.sending import forget_pending, key_of, once_of

logger = logging.getLogger("leases")

#: What the failed runs left in a message's options; a replay starts afresh.
_TRACES = frozenset({"retries", "traceback", "requeue_timestamp", "redis_message_id", "eta", "queued_at"})

# A replay that was asked for and not carried out within a minute died in between: it may be asked for again.
_CLAIM = """
UPDATE leases_deadletter SET replay_asked_at = clock_timestamp(), replayed_by = %(by)s
 WHERE id = %(id)s AND replayed_at IS NULL
   AND (replay_asked_at IS NULL OR replay_asked_at < clock_timestamp() - interval '1 minute')
"""


def record(message: dramatiq.MessageProxy, broker: dramatiq.Broker) -> None:
    """Keep a message of `broker` that failed for good; what a row cannot hold is kept as text, and the letter says so.

    Raises django.db.DatabaseError; then nothing is kept.
    """
    error: BaseException | None = message._exception
    trace = message.options.get("traceback") or ""
    if error is not None and not trace:
        trace = "".join(traceback.format_exception(error))
    reason = _described(error)
    options = {name: value for name, value in message.options.items() if name != "traceback"}
    names = [str(message.message_id), str(message.queue_name).removesuffix(".DQ"), str(message.actor_name)]
    kept_names = [_storable(name)[:most] for name, most in zip(names, (64, 255, 255), strict=True)]
    kept = [_as_json(value) for value in (list(message.args), message.kwargs, options)]
    with connections[router.db_for_write(DeadLetter)].cursor() as cursor:
        cursor.execute(
            "INSERT INTO leases_deadletter"
            " (message_id, queue, actor, args, kwargs, options, is_exact, key, reason, traceback, died_at, replayed_by)"
            " VALUES (%s, %s, %s, %s::jsonb, %s::jsonb, %s::jsonb, %s, %s, %s, %s, clock_timestamp(), '')",
            [
                *kept_names,
                *(text for text, _ in kept),
                kept_names == names and all(is_exact for _, is_exact in kept),
                key_of(message, broker) or "",  # type: ignore[arg-type]  # a proxy of the message
                _storable(reason)[:2000],
                _storable(str(trace)),
            ],
        )
    logger.error(
        "%s failed for good: %s",
        message.actor_name,
        reason,
        extra={"event": "job.dead", "message_id": message.message_id, "actor": message.actor_name},
    )


def replay(letter: DeadLetter, *, by: str) -> None:
    """Enqueue the message of a dead letter again with all its retries, once, into the queue that its actor has now.

    Raises AlreadyReplayed; ActorUnknown and LetterInexact if what would run is not what the message asked for; and
    when its actor is @once and its key has a receipt by now, AlreadyDone, or KeyTaken if that is another function's.
    Whatever the broker raises leaves the letter as it was.
    """
    import_actors()
    try:
        actor = dramatiq.get_broker().get_actor(letter.actor)
    except dramatiq.ActorNotFound:
        raise ActorUnknown(letter.actor) from None
    if not letter.is_exact:
        raise LetterInexact(letter.message_id)
    _refuse_if_done(letter.key, once_of(actor.fn))
    alias = router.db_for_write(DeadLetter)
    with connections[alias].cursor() as cursor:
        cursor.execute(_CLAIM, {"id": letter.pk, "by": by})
        if not cursor.rowcount:
            raise AlreadyReplayed(letter.message_id)
    try:
        dramatiq.get_broker().enqueue(message_of(letter, queue_name=actor.queue_name))
    except BaseException:
        DeadLetter.objects.using(alias).filter(pk=letter.pk).update(replay_asked_at=None, replayed_by="")
        raise
    with connections[alias].cursor() as cursor:
        cursor.execute("UPDATE leases_deadletter SET replayed_at = clock_timestamp() WHERE id = %s", [letter.pk])
    if letter.key:
        forget_pending(letter.key)
    logger.warning(
        "%s of %s was enqueued again by %s.",
        letter.message_id,
        letter.actor,
        by,
        extra={"event": "job.replayed", "message_id": letter.message_id, "by": by},
    )


def message_of(letter: DeadLetter, *, queue_name: str) -> "dramatiq.Message[Any]":
    """Return the message as it was before its first run, for a queue."""
    return dramatiq.Message(
        queue_name=queue_name,
        actor_name=letter.actor,
        args=tuple(letter.args),
        kwargs=letter.kwargs,
        options={name: value for name, value in letter.options.items() if name not in _TRACES},
        message_id=letter.message_id,
    )


def _refuse_if_done(key: str, spec: Once | None) -> None:
    if not key:
        return
    receipt = Receipt.objects.using(spec.using if spec else router.db_for_write(Receipt)).filter(key=key).first()
    if receipt is None:
        return
    if spec is not None and receipt.actor != spec.name:
        raise KeyTaken(key, actor=spec.name, owner=receipt.actor)
    if receipt.state != Receipt.State.STARTED:
        raise AlreadyDone(key)


def _as_json(value: Any) -> tuple[str, bool]:
    """Return `value` as JSON that PostgreSQL can hold, and whether reading it gives `value` again."""
    try:
        text = json.dumps(_plain(value), allow_nan=False)
        return text, json.loads(text) == value
    except Exception:  # nested too deep, too many digits, or whatever an object raises when it is compared
        return json.dumps([_storable(_described(value))]), False


def _plain(value: Any) -> Any:
    if value is None or type(value) in (bool, int) or (type(value) is float and math.isfinite(value)):
        return value
    if type(value) is str:
        return _storable(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {_storable(key if type(key) is str else _described(key)): _plain(one) for key, one in value.items()}
    return _storable(_described(value))


def _described(value: object) -> str:
    try:
        if value is None:
            return "not known"
        return f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else repr(value)
    except Exception as error:
        return f"{type(value).__name__}, which cannot be shown: {type(error).__name__}"


def _storable(text: str) -> str:
    return text.replace("\x00", "").encode(errors="replace").decode()
