"""What the lease tests share: a clean Redis, an account, and thieves."""

from collections.abc import Iterator
from typing import Any

import pytest
from django_redis import get_redis_connection

from leases import redis_store
from leases.errands import errands
from tests.ledger.models import Account


@pytest.fixture(autouse=True)
def redis() -> Iterator[Any]:
    client = get_redis_connection("leases")
    client.flushdb()
    yield client
    errands.finish()  # a report that comes late would be found by the next test
    client.flushdb()


@pytest.fixture
def account(transactional_db: None) -> Account:
    return Account.objects.create(name="Ada")


@pytest.fixture
def resource(account: Account) -> str:
    return f"account:{account.pk}"


def steal(resource: str, *, ttl_ms: int = 60_000, using: str = "default") -> int:
    """Take a resource as another process would after the lease expired: a new key and a newer fence."""
    from leases import fence
    from leases.process import ProcessIdentity
    from leases.resources import key_of

    get_redis_connection("leases").delete(key_of(resource))
    holder = "f" * 32
    floor = (fence.current(resource, using=using) or 0) + 1
    granted = redis_store.acquire(resource, holder=holder, ttl_ms=ttl_ms, floor=floor)
    assert isinstance(granted, redis_store.Granted)
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
