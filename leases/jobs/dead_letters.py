"""Dead letters that do not vanish.

A broker keeps a message that failed for good for a week and then deletes it, unseen. Here each one becomes a row with
its reason, until a person replays it or throws it away.
"""

import json
import logging
import traceback
from typing import Any

import dramatiq
from django.db import connections, router

from leases.jobs.errors import AlreadyDone, AlreadyReplayed
from leases.jobs.models import DeadLetter, Receipt
from leases.jobs.sending import forget_pending, key_of

logger = logging.getLogger("leases")

#: What the failed runs left in a message's options; a replay starts afresh.
_TRACES = frozenset({"retries", "traceback", "requeue_timestamp", "redis_message_id", "eta", "queued_at"})

# A replay that was asked for and not carried out within a minute died in between: it may be asked for again.
_CLAIM = """
UPDATE leases_deadletter SET replay_asked_at = clock_timestamp(), replayed_by = %(by)s
 WHERE id = %(id)s AND replayed_at IS NULL
   AND (replay_asked_at IS NULL OR replay_asked_at < clock_timestamp() - interval '1 minute')
"""


def record(message: dramatiq.MessageProxy) -> None:
    """Keep a message that failed for good."""
    error: BaseException | None = message._exception
    trace = message.options.get("traceback") or ""
    if error is not None and not trace:
        trace = "".join(traceback.format_exception(error))
    reason = f"{type(error).__name__}: {error}" if error is not None else "not known"
    options = {name: value for name, value in message.options.items() if name != "traceback"}
    with connections[router.db_for_write(DeadLetter)].cursor() as cursor:
        cursor.execute(
            "INSERT INTO leases_deadletter"
            " (message_id, queue, actor, args, kwargs, options, key, reason, traceback, died_at, replayed_by)"
            " VALUES (%s, %s, %s, %s::jsonb, %s::jsonb, %s::jsonb, %s, %s, %s, clock_timestamp(), '')",
            [
                message.message_id,
                message.queue_name.removesuffix(".DQ"),
                message.actor_name,
                _json(message.args),
                _json(message.kwargs),
                _json(options),
                key_of(message) or "",  # type: ignore[arg-type]  # a proxy of the message
                _storable(reason)[:2000],
                _storable(trace),
            ],
        )
    logger.error(
        "%s failed for good: %s",
        message.actor_name,
        reason,
        extra={"event": "job.dead", "message_id": message.message_id, "actor": message.actor_name},
    )


def replay(letter: DeadLetter, *, by: str) -> None:
    """Enqueue the message of a dead letter again with all its retries, once.

    Raises AlreadyReplayed, and AlreadyDone when its actor is @once and its key has a receipt by now. Whatever the
    broker raises leaves the letter as it was.
    """
    if letter.key and Receipt.objects.filter(key=letter.key).exclude(state=Receipt.State.STARTED).exists():
        raise AlreadyDone(letter.key)
    alias = router.db_for_write(DeadLetter)
    with connections[alias].cursor() as cursor:
        cursor.execute(_CLAIM, {"id": letter.pk, "by": by})
        if not cursor.rowcount:
            raise AlreadyReplayed(letter.message_id)
    broker = dramatiq.get_broker()
    try:
        broker.enqueue(message_of(letter))
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


def message_of(letter: DeadLetter) -> "dramatiq.Message[Any]":
    """Return the message as it was before its first run."""
    return dramatiq.Message(
        queue_name=letter.queue,
        actor_name=letter.actor,
        args=tuple(letter.args),
        kwargs=letter.kwargs,
        options={name: value for name, value in letter.options.items() if name not in _TRACES},
        message_id=letter.message_id,
    )


def _json(value: Any) -> str:
    return _storable(json.dumps(value, default=repr)).replace("\\u0000", "")


def _storable(text: str) -> str:
    return text.replace("\x00", "").encode(errors="replace").decode()
