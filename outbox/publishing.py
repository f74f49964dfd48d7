"""Publish a message in the caller's transaction, and take it back."""

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.db import connections, router, transaction
from django.utils import timezone

from outbox import channels, wakeup
from outbox.conf import settings
from outbox.errors import DedupeConflict, InvalidContent, NotInTransaction
from outbox.models import Message, State
from outbox.statements import statement

# As JSON writes it: a backslash that is not itself escaped. Looked for only where the shorter text is, which
# is found much sooner.
_LIKE_NUL = rb"\u0000"
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_NOT_STORABLE = re.compile("[\0\ud800-\udfff]")  # NUL, and halves of surrogate pairs

_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
_storable = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode

# Name -> how the channel was configured, and the channel.
_made: dict[str, tuple[object, channels.Channel]] = {}

# Deep enough for any content, and far from where a drainer, whose stack may be deeper than the caller's, could not
# decode it.
MOST_LEVELS = 100


def publish(
    channel: str,
    content: Mapping[str, Any],
    *,
    dedupe_key: str,
    not_before: datetime | None = None,
    deadline: datetime | None = None,
    using: str | None = None,
) -> Message:
    """Publish `content` so that it is sent once if, and only if, the caller's transaction commits.

    `dedupe_key` names what the message tells about, with its version ("invoice:42:2026-05:v1"), and never the id of a
    row that may yet be rolled back. The key is used up for ever: published again with the same content, the message
    that exists is returned, whatever became of it; with other content it is a DedupeConflict.

    content: JSON; the fields are the channel's. not_before, deadline: aware datetimes; it is handed over in between or
    not at all. using: the database of the caller's transaction; default where the router writes messages.

    Raises NotInTransaction outside atomic(), InvalidContent, UnknownChannel, DedupeConflict.
    """
    alias = _in_transaction("publish()", using)
    digest = _digest(channel, content)
    if not isinstance(dedupe_key, str) or not 0 < len(dedupe_key) <= 500 or _NOT_STORABLE.search(dedupe_key):
        raise InvalidContent(channel, f"the dedupe_key is {dedupe_key!r:.70}; it is text of 1 to 500 characters")
    for name, moment in {"not_before": not_before, "deadline": deadline}.items():
        if moment is not None:
            _check_moment(channel, name, moment)
    payload = _channel(channel).prepare(content, dedupe_key=dedupe_key)
    values = {
        "channel": channel,
        "dedupe_key": dedupe_key,
        "digest": digest,
        "payload": _storable(payload),
        "not_before": not_before,
        "deadline": deadline,
    }
    with connections[alias].cursor() as cursor:
        cursor.execute(statement("publish"), values)
        row = cursor.fetchone()
    if row is None:
        return _known(alias, dedupe_key, digest)
    if row[3]:
        wakeup.after_commit(alias)
    stored = {
        "id": row[0],
        "channel": channel,
        "dedupe_key": dedupe_key,
        "digest": digest,
        "payload": payload,
        "state": State.PENDING,
        "available_at": row[2] or row[1],
        "deadline_at": deadline,
        "attempts": 0,
        "first_attempt_at": None,
        "resend_until": None,
        "claim": None,
        "claimed_until": None,
        "drainer": "",
        "last_error": "",
        "sent_at": None,
        "provider_id": "",
        "refused": {},
        "history": [],
        "created_at": row[1],
    }
    # All fields, in the model's order: by name, Django takes four times as long.
    return Message.from_db(alias, list(stored), list(stored.values()))


def cancel(dedupe_key: str, *, using: str | None = None) -> bool:
    """Take an unsent message back in the caller's transaction; True if it was not sent, and now will not be.

    False when there is none, or it is beyond recall: being sent, sent, in doubt. Also when it was in doubt until a
    person decided: it is cancelled, and may have arrived all the same. A message whose sending is given up (dead) is
    cancelled too, so that nobody sends it again by hand. Raises NotInTransaction outside atomic().
    """
    alias = _in_transaction("cancel()", using)
    if _NOT_STORABLE.search(dedupe_key):
        return False
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute(statement("cancel"), {"dedupe_key": dedupe_key})
        row = cursor.fetchone()
        if row is None:
            # Having waited for an intent, PostgreSQL keeps the row locked for us, and the drainer's mark would wait.
            transaction.set_rollback(True, using=alias)
    return row is not None and bool(row[0])


def _in_transaction(what: str, using: str | None) -> str:
    alias = using or router.db_for_write(Message)
    if not connections[alias].in_atomic_block:
        raise NotInTransaction(what, alias)
    return alias


def _known(alias: str, dedupe_key: str, digest: str) -> Message:
    message = Message.objects.using(alias).get(dedupe_key=dedupe_key)
    if message.digest != digest:
        raise DedupeConflict(dedupe_key, message.id, message.digest, digest)
    return message


def _check_moment(channel: str, name: str, moment: Any) -> None:
    if not isinstance(moment, datetime):
        raise InvalidContent(channel, f"{name} is {moment!r}, not a datetime")
    if timezone.is_naive(moment):
        raise InvalidContent(channel, f"{name} is {moment}, without a time zone")
    try:
        moment.astimezone(UTC)
    except OverflowError as error:
        raise InvalidContent(channel, f"{name} is {moment}, beyond what a calendar has: {error}") from None


def _digest(channel: str, content: Mapping[str, Any]) -> str:
    """Of what the caller said, before anything random or timed is added to it."""
    if not isinstance(content, Mapping):
        raise InvalidContent(channel, f"it is {type(content).__name__}, not a mapping")
    try:
        canonical = _canonical([channel, dict(content)]).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidContent(channel, f"it is not JSON: {error}") from error
    # Most content has fewer brackets than there may be levels.
    if canonical.count(b"[") + canonical.count(b"{") > MOST_LEVELS and not _is_flat(content, MOST_LEVELS):
        raise InvalidContent(channel, f"it is nested in more than {MOST_LEVELS} levels")
    if _LIKE_NUL in canonical and _NUL.search(canonical):
        raise InvalidContent(channel, "it contains a NUL character, which PostgreSQL cannot store")
    if len(canonical) > settings.MAX_CONTENT_BYTES:
        raise InvalidContent(
            channel, f"it has {len(canonical)} bytes, more than OUTBOX_MAX_CONTENT_BYTES = {settings.MAX_CONTENT_BYTES}"
        )
    return hashlib.sha256(canonical).hexdigest()


def _is_flat(value: Any, levels: int) -> bool:
    """Whether it is nested in no more than `levels`."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return levels >= 0 and all(_is_flat(one, levels - 1) for one in inner)


def _channel(name: str) -> channels.Channel:
    config = settings.CHANNELS.get(name)
    made = _made.get(name)
    if made is None or made[0] is not config:
        made = _made[name] = (config, channels.channel(name))
    return made[1]
