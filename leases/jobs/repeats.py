"""What a function that is `once()` finds under its key, and how its steps are told."""

import functools
import json
import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import connections, transaction

from leases.jobs import receipt_sql
from leases.jobs.errors import KeyTaken, OutcomeNotJson
from leases.jobs.keys import KeyTemplate
from leases.jobs.messages import current_message
from leases.jobs.models import Receipt

logger = logging.getLogger("leases")


@dataclass(slots=True)
class Once:
    """What `once()` was told about a function; found as its attribute `once`."""

    key: KeyTemplate
    name: str
    retention: timedelta | None
    using: str
    #: Whether the last job of this process had run before. Repeats come in bursts, so the next one is taken for alike.
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an earlier run of the key left."""

    state: str
    outcome: Any


def find_earlier(spec: Once, key: str) -> Earlier | None:
    """Return what an earlier run of the same function left, and count that it was asked for again."""
    nested = connections[spec.using].in_atomic_block
    row = (receipt_sql.look if nested else receipt_sql.ask)(key, spec.name, using=spec.using)
    if row is None:
        return None
    if nested:
        # The count would lock the row until the caller's transaction ends, and with it everybody who asks.
        count = functools.partial(receipt_sql.ask, key, spec.name, using=spec.using)
        transaction.on_commit(count, using=spec.using, robust=True)
    state, outcome = row
    log(
        "receipt.again",
        "%s is parked; nothing ran." if state == Receipt.State.PARKED else "%s has run before; nothing ran.",
        spec,
        key,
    )
    return Earlier(state, outcome)


def refuse_foreign(spec: Once, key: str) -> str | None:
    """Raise KeyTaken if the receipt that is there is another function's; return its state, None if there is none."""
    row = Receipt.objects.using(spec.using).filter(key=key).values_list("actor", "state").first()
    if row is None:
        return None
    owner, state = row
    if owner != spec.name:
        raise KeyTaken(key, actor=spec.name, owner=owner)
    return str(state)


def as_json(key: str, outcome: object) -> str | None:
    """Return `outcome` as PostgreSQL can keep it; raises OutcomeNotJson.

    Its own caller gets it back from this text too, so that the first one and those who ask again get the same.
    """
    if outcome is None:
        return None
    try:
        text = json.dumps(outcome, allow_nan=False)
        if "\\ud" in text:  # half a surrogate pair, perhaps
            json.dumps(outcome, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise OutcomeNotJson(key, outcome=outcome, reason=str(error)) from error
    if "\\u0000" in text.replace("\\\\", ""):
        raise OutcomeNotJson(key, outcome=outcome, reason="it contains a NUL character")
    return text


def log(
    event: str,
    message: str,
    spec: Once,
    key: str,
    *,
    level: int = logging.INFO,
    error: BaseException | None = None,
    **data: object,
) -> None:
    """Write one step of a job as a log line."""
    broker_message = current_message()
    logger.log(
        level,
        message,
        key,
        exc_info=error,
        extra={
            "event": event,
            "key": key,
            "function": spec.name,
            "message_id": broker_message.message_id if broker_message else None,
            **data,
        },
    )
