"""What is known of leases, for people: records beside what Redis says of them now."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from redis.exceptions import RedisError

from leases import keys
from leases.models import LeaseRecord


@dataclass(frozen=True, slots=True)
class Live:
    """What Redis says of a lease: `held` and for how long yet, `expired` (no such key), `taken` by another holder.

    `unknown` if Redis did not answer.
    """

    state: Literal["held", "expired", "taken", "unknown"]
    left: timedelta | None = None

    def __str__(self) -> str:
        return self.state if self.left is None else f"{self.left.total_seconds():.1f} s"


def live_states(records: Sequence[LeaseRecord]) -> list[Live]:
    """Return what Redis says of `records`, in their order, in one round trip."""
    try:
        found = keys.read(record.resource for record in records)
    except RedisError:
        return [Live("unknown") for _ in records]
    return [_live(record, found.get(record.resource)) for record in records]


def _live(record: LeaseRecord, key: keys.Key | None) -> Live:
    if key is None:
        return Live("expired")
    if not key.is_of(record.holder, record.token):
        return Live("taken")
    return Live("held", key.left)
