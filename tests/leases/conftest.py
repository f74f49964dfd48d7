"""What the lease tests share: a clean Redis, ways to set its client up, an account, and thieves."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis as redis_py
from django.conf import settings as django_settings
from django_redis import get_redis_connection

from leases import redis_store
from leases.errands import errands
from tests.ledger.models import Account
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def redis() -> Iterator[Any]:
    """A client of the test's own, which gives bytes however the client of `leases` is set up."""
    with redis_py.Redis.from_url(django_settings.CACHES["leases"]["LOCATION"]) as client:
        client.flushdb()
        yield client
        errands.finish()  # a report that comes late would be found by the next test
        client.flushdb()


#: Of decoding, protocol and parser, every two settings of every two of them meet in one of these; the server varies by
#: the section of `.ci/run`.
CLIENTS = {
    "bytes-RESP2-hiredis": (False, 2, "hiredis._HiredisParser"),
    "bytes-RESP3-python": (False, 3, "resp3._RESP3Parser"),
    "text-RESP2-python": (True, 2, "resp2._RESP2Parser"),
    "text-RESP3-hiredis": (True, 3, "hiredis._HiredisParser"),
}


@pytest.fixture(params=CLIENTS)
def every_client(request: pytest.FixtureRequest, settings: Any) -> None:
    """Run the test once for each of CLIENTS."""
    decode, protocol, parser = CLIENTS[request.param]
    leases = settings.CACHES["leases"]
    settings.CACHES = {
        **settings.CACHES,
        "leases": {
            **leases,
            # django-redis keeps one pool per address.
            "LOCATION": f"{leases['LOCATION']}?client_name={request.param}",
            "OPTIONS": {
                **leases["OPTIONS"],
                "PARSER_CLASS": f"redis._parsers.{parser}",
                "CONNECTION_POOL_KWARGS": {"decode_responses": decode, "protocol": protocol},
            },
        },
    }


@pytest.fixture
def account(transactional_db: None) -> Account:
    return Account.objects.create(name="Ada")


@pytest.fixture
def resource(account: Account) -> str:
    return f"account:{account.pk}"


@pytest.fixture
def unreachable_redis(settings: Any) -> None:
    settings.CACHES = {
        **settings.CACHES,
        "nowhere": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": "redis://127.0.0.1:1/0",
            "OPTIONS": {"SOCKET_CONNECT_TIMEOUT": 0.2, "SOCKET_TIMEOUT": 0.2},
        },
    }
    settings.LEASES_REDIS_ALIAS = "nowhere"


def steal(resource: str, *, ttl_ms: int = 60_000, using: str = "default") -> int:
    """Take a resource as another process would after the lease expired: a new key and a newer fence."""
    from leases import fence
    from leases.process import ProcessIdentity
    from leases.resources import key_of

    holder = "f" * 32
    floor = (fence.current(resource, using=using) or 0) + 1
    taken: list[redis_store.Granted] = []

    def take() -> bool:
        get_redis_connection("leases").delete(key_of(resource))
        granted = redis_store.acquire(resource, holder=holder, ttl_ms=ttl_ms, floor=floor)
        # A renewal in between finds no key, and puts it back.
        if isinstance(granted, redis_store.Granted):
            taken.append(granted)
        return bool(taken)

    wait_until(take)
    (granted,) = taken
    registration = fence.Registration(
        resource=resource,
        token=granted.token,
        holder=holder,
        ttl_ms=ttl_ms,
        process=ProcessIdentity("elsewhere", 1, ""),
        thread="",
    )
    fence.register(registration, lock_timeout_ms=10_000, using=using)
    return granted.token
