"""What Redis says about leases, read without changing anything."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from django_redis import get_redis_connection
from redis.exceptions import RedisError, ResponseError

from leases.conf import conf
from leases.resources import key_of

# What lua/acquire.lua takes for a lease; 18 digits are the most that a bigint surely holds.
_LEASE = re.compile(r"([0-9a-f]+):([1-9][0-9]{0,17})")


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a resource: its value as text, and the time left of the lease (None if it never expires).

    Nothing is left of a lease whose key stays only for LEASES_LOCK_DELAY.
    """

    value: str
    left: timedelta | None

    @property
    def holder(self) -> str | None:
        """The holder, or None if the value is not a lease."""
        match = _LEASE.fullmatch(self.value)
        return match[1] if match else None

    @property
    def token(self) -> int | None:
        match = _LEASE.fullmatch(self.value)
        return int(match[2]) if match else None

    def is_of(self, holder: str, token: int) -> bool:
        return self.value == f"{holder}:{token}"


def read(resources: Iterable[str]) -> dict[str, Key]:
    """Return the keys of those `resources` that have one, in one round trip; raises redis.RedisError."""
    names = list(resources)
    if not names:
        return {}
    pipeline = get_redis_connection(conf.REDIS_ALIAS, write=True).pipeline(transaction=False)
    for name in names:
        # Foreign bytes that are no text would fail a client that decodes answers.
        pipeline.execute_command("GET", key_of(name), NEVER_DECODE=True)
        pipeline.pttl(key_of(name))
    lock_delay: timedelta = conf.LOCK_DELAY
    replies = pipeline.execute(raise_on_error=False)
    keys = {}
    for name, value, left_ms in zip(names, replies[::2], replies[1::2], strict=True):
        if isinstance(value, ResponseError) and "WRONGTYPE" in str(value):
            value = "(a value of another type)"
        for reply in (value, left_ms):
            if isinstance(reply, RedisError):
                raise reply
        if value is not None and left_ms != -2:
            text = value.decode(errors="replace")
            left = max(timedelta(0), timedelta(milliseconds=left_ms) - lock_delay)
            keys[name] = Key(text, None if left_ms < 0 else left)
    return keys
