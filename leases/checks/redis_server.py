"""Checks of the Redis server behind the leases; they connect, so they run with `check --deploy` and in the doctor."""

from typing import Any

from django.core.checks import CheckMessage, Error, Warning, register
from django_redis import get_redis_connection
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from leases.conf import conf

#: The first version whose SET takes NX and GET together; Valkey reports 7.2.4 to those who ask for Redis' version.
OLDEST = (7, 0)


@register("leases", deploy=True)
def redis_server(**kwargs: Any) -> list[CheckMessage]:
    """Check that the server answers, is the one that is written to, forgets nothing, and survives a restart."""
    try:
        client: Redis = get_redis_connection(conf.REDIS_ALIAS, write=True)
        info = dict(client.info())
        saves = _saves(client)
    except (RedisError, NotImplementedError, ValueError, KeyError) as error:
        return [
            Error(
                f"The Redis behind LEASES_REDIS_ALIAS={conf.REDIS_ALIAS} does not answer: {error}",
                hint=f"Start it, or correct CACHES[{conf.REDIS_ALIAS!r}]['LOCATION'].",
                id="leases.E030",
            )
        ]
    return [*_version(info), *_role(info), *_policy(info), *_persistence(info, saves), *_shared(info)]


def _version(info: dict[str, Any]) -> list[CheckMessage]:
    version = str(info.get("redis_version", ""))
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) >= OLDEST:
        return []
    return [
        Error(
            f"The Redis behind the leases has version {version}.",
            hint="Use Redis 7.0 or newer, or Valkey 8 or newer.",
            id="leases.E031",
        )
    ]


def _role(info: dict[str, Any]) -> list[CheckMessage]:
    if info.get("role") == "master":
        return []
    host, port = info.get("master_host", "?"), info.get("master_port", "?")
    return [
        Error(
            "The Redis behind the leases is a replica: it refuses every lease.",
            hint=f"Let CACHES[{conf.REDIS_ALIAS!r}]['LOCATION'] name its master, {host}:{port}.",
            id="leases.E032",
        )
    ]


def _policy(info: dict[str, Any]) -> list[CheckMessage]:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return []
    return [
        Error(
            f"The Redis behind the leases evicts keys when memory is short (maxmemory-policy {policy}): leases vanish "
            "under running holders.",
            hint="Type: redis-cli CONFIG SET maxmemory-policy noeviction, and set it in redis.conf; or give the leases "
            "a server of their own, apart from caches.",
            id="leases.E033",
        )
    ]


def _persistence(info: dict[str, Any], saves: bool) -> list[CheckMessage]:
    if info.get("aof_enabled") or saves:
        return []
    return [
        Warning(
            "The Redis behind the leases keeps nothing on disk: a restart forgets every lease, and all holders have to "
            "put theirs back at once.",
            hint="Type: redis-cli CONFIG SET appendonly yes, and set it in redis.conf.",
            id="leases.W034",
        )
    ]


def _shared(info: dict[str, Any]) -> list[CheckMessage]:
    """A broker on the same server fills it, and what is evicted then may be a message or a lease."""
    try:
        from dramatiq.broker import global_broker
        from dramatiq.brokers.redis import RedisBroker
    except ImportError:
        return []
    if not isinstance(global_broker, RedisBroker) or info.get("maxmemory_policy", "noeviction") == "noeviction":
        return []
    try:
        same = global_broker.client.info("server").get("run_id") == info.get("run_id")
    except RedisError:
        return []
    if not same:
        return []
    return [
        Error(
            "Leases and Dramatiq's messages share one Redis that evicts keys: a long queue can push out leases, and "
            "either can push out messages.",
            hint="Give the leases a server of their own (another LOCATION in CACHES), and both noeviction.",
            id="leases.E035",
        )
    ]


def _saves(client: Redis) -> bool:
    """Say whether snapshots are taken; a hosted Redis that forbids CONFIG is given the benefit of the doubt."""
    try:
        return bool(client.config_get("save").get("save"))
    except ResponseError:
        return True
