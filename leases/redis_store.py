"""The Redis side of a lease: three scripts, one key per resource.

Redis proposes who may work and which token they get; what it says is a hint that saves wasted work. Every script is
idempotent, so that a reply which got lost can simply be asked for again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Literal

from django_redis import get_redis_connection
from redis import Redis
from redis.commands.core import Script
from redis.exceptions import NoScriptError, RedisError, ResponseError

from leases.conf import conf
from leases.resources import key_of

Verdict = Literal["renewed", "absent", "other"]
_VERDICTS: dict[str, Verdict] = {"renewed": "renewed", "absent": "absent", "other": "other"}


@dataclass(frozen=True, slots=True)
class Granted:
    token: int


@dataclass(frozen=True, slots=True)
class Held:
    holder: str
    token: int
    left: timedelta


@dataclass(frozen=True, slots=True)
class Corrupt:
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Renewal:
    """One lease to let last on: whose, under which token, for how long from now."""

    resource: str
    holder: str
    token: int
    ttl_ms: int


def acquire(resource: str, *, holder: str, ttl_ms: int, floor: int) -> Granted | Held | Corrupt:
    """Grant `resource` to `holder` for `ttl_ms` under a token of at least `floor`, or say who has it.

    Raises redis.RedisError when Redis does not answer; the grant may then exist, and asking again finds it.
    """
    key = key_of(resource)
    max_ms = round(conf.MAX_TTL / timedelta(milliseconds=1))
    try:
        reply = _run("acquire", key, holder, ttl_ms, floor, max_ms)
    except ResponseError as error:
        if "WRONGTYPE" not in str(error):
            raise
        return Corrupt(key, "a value of another type")
    what, *rest = [_text(part) for part in reply]
    if what == "granted":
        return Granted(int(rest[0]))
    if what == "held":
        return Held(rest[0], int(rest[1]), timedelta(milliseconds=int(rest[2])))
    return Corrupt(key, rest[0])


def renew(renewals: Sequence[Renewal]) -> list[Verdict | RedisError]:
    """Let many leases last on in one round trip; the answers come in the order of `renewals`."""
    sha = _load("renew")
    pipeline = _client().pipeline(transaction=False)
    for one in renewals:
        pipeline.evalsha(sha, 1, key_of(one.resource), one.holder, str(one.token), str(one.ttl_ms))
    try:
        replies = pipeline.execute(raise_on_error=False)
    except RedisError as error:
        return [error] * len(renewals)
    if any(isinstance(reply, NoScriptError) for reply in replies):
        _load.cache_clear()
        return renew(renewals)
    return [reply if isinstance(reply, RedisError) else _VERDICTS[_text(reply)] for reply in replies]


def restore(renewal: Renewal) -> bool:
    """Put a lease back that Redis forgot; False if somebody else has the key by now. Raises redis.RedisError."""
    value = f"{renewal.holder}:{renewal.token}"
    if _client().set(key_of(renewal.resource), value, nx=True, px=renewal.ttl_ms):
        return True
    [answer] = renew([renewal])
    if isinstance(answer, RedisError):
        raise answer
    return answer == "renewed"


def release(resource: str, *, holder: str, token: int, linger_ms: int = 0) -> Literal["released", "absent", "other"]:
    """Delete the lease's key if it is still this holder's; with `linger_ms`, let it expire then instead."""
    answer = _text(_run("release", key_of(resource), holder, token, linger_ms))
    return "released" if answer == "released" else "absent" if answer == "absent" else "other"


@contextmanager
def woken_by_release(resource: str) -> Iterator[Callable[[float], None]]:
    """Give a function that waits until `resource` is released, and for at most so many seconds.

    A release before the first wait may be missed, so ask again once this is entered.
    """
    with _client().pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe(key_of(resource))

        def wait(timeout_s: float) -> None:
            subscription.get_message(timeout=timeout_s)

        yield wait


def live(resources: Iterable[str]) -> dict[str, timedelta]:
    """Return the time left of those `resources` that are leased now, in one round trip."""
    names = list(resources)
    pipeline = _client().pipeline(transaction=False)
    for name in names:
        pipeline.pttl(key_of(name))
    return {
        name: timedelta(milliseconds=left) for name, left in zip(names, pipeline.execute(), strict=True) if left != -2
    }


def _client() -> Redis:
    client: Redis = get_redis_connection(conf.REDIS_ALIAS, write=True)
    return client


def _run(verb: str, key: str, *args: object) -> Any:
    return _script(verb)(keys=[key], args=[str(arg) for arg in args], client=_client())


@cache
def _script(verb: str) -> Script:
    return _client().register_script(_source(verb))


@cache
def _load(verb: str) -> str:
    return _text(_client().script_load(_source(verb)))


@cache
def _source(verb: str) -> str:
    return (Path(__file__).parent / "lua" / f"{verb}.lua").read_text()


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
