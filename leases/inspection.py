"""What is known of leases, for people: records beside what Redis says of them now."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from redis.exceptions import RedisError

from leases import keys
from leases.models import LeaseRecord


@dataclass(frozen=True, slots=True)
class Live:
    """What becomes of a lease now: `held` and for how long yet, `expired` (no such key), `taken` by another holder.

    How it ended (`released`, `lost`, `broken`, `expired`) if its record says so since it was read, `pruned` if there is
    no record any more, `unknown` if Redis did not answer.
    """

    state: str
    left: timedelta | None = None

    def __str__(self) -> str:
        return self.state if self.left is None else f"{self.left.total_seconds():.1f} s"


def live_states(records: Sequence[LeaseRecord]) -> list[Live]:
    """Return what becomes of `records`, in their order, after one round trip to Redis.

    A release writes its record before it deletes the key, so the records of those that have no key are read again.
    """
    try:
        found = keys.read(record.resource for record in records)
    except RedisError:
        return [Live("unknown") for _ in records]
    states = [_live(record, found.get(record.resource)) for record in records]
    without_key = [record for record, live in zip(records, states, strict=True) if live.state != "held"]
    ends = _ends(without_key)
    for position, record in enumerate(records):
        if states[position].state != "held" and (end := ends.get(record.pk, "pruned")):
            states[position] = Live(end)
    return states


def _live(record: LeaseRecord, key: keys.Key | None) -> Live:
    if key is None:
        return Live("expired")
    if not key.is_of(record.holder, record.token):
        return Live("taken")
    return Live("held", key.left)


def _ends(records: Sequence[LeaseRecord]) -> dict[int, str]:
    """Return how each of the records ended, empty for what has not ended; those that are gone are missing."""
    if not records:
        return {}
    again = LeaseRecord.objects.using(records[0]._state.db).filter(pk__in=[record.pk for record in records])
    return dict(again.values_list("pk", "end"))
