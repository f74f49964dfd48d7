"""What `hold()` is given: names, durations, where it is called, and what it finds under its key."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from leases import hold, live
from leases.errors import (
    InsideCoroutine,
    InsideTransaction,
    InvalidResource,
    InvalidTtl,
    LeaseCorrupt,
)
from leases.resources import key_of

pytestmark = pytest.mark.django_db(transaction=True)
SHORT = timedelta(milliseconds=600)


def test_lease_is_refused_inside_an_open_transaction() -> None:
    with transaction.atomic(), pytest.raises(InsideTransaction, match=r"leases\.testing\.holding"), hold("customer:1"):
        pass


def test_lease_is_refused_in_a_coroutine() -> None:
    import asyncio

    async def job() -> None:
        with hold("customer:1"):
            pass

    with pytest.raises(InsideCoroutine):
        asyncio.run(job())


@pytest.mark.parametrize("name", ["", "x" * 256, "a\x00b", "\ud800", 7, None])
def test_name_that_cannot_be_stored_is_refused(name: Any) -> None:
    with pytest.raises(InvalidResource), hold(name):
        pass


@pytest.mark.parametrize("name", ["kunde:ä", "a}b", "{a}", "a%7Db", "a b\n", "顧客:1", "x" * 255])
def test_any_other_name_works_and_is_one_key(name: str) -> None:
    with hold(name):
        assert set(live([name, name + "!"])) == {name}


@pytest.mark.parametrize(
    "ttl",
    [timedelta(0), timedelta(seconds=-1), timedelta(microseconds=400), timedelta(days=1), True, 60, float("nan")],
)
def test_ttl_out_of_range_is_refused_before_redis_sees_it(ttl: Any, redis: Any) -> None:  # locks L40 L41
    with pytest.raises(InvalidTtl), hold("customer:1", ttl=ttl):
        pass
    assert redis.dbsize() == 0


@pytest.mark.usefixtures("every_client")
@pytest.mark.parametrize("value", ["1", "held", "xyz:1", "ab:cd"])
def test_foreign_value_is_corruption_not_contention(value: str, redis: Any) -> None:
    redis.set(key_of("customer:1"), value)
    with pytest.raises(LeaseCorrupt), hold("customer:1"):
        pass


@pytest.mark.usefixtures("every_client")
def test_foreign_type_is_corruption_not_contention(redis: Any) -> None:
    redis.rpush(key_of("customer:1"), "x")
    with pytest.raises(LeaseCorrupt), hold("customer:1"):
        pass


@pytest.mark.parametrize("linger", [5, timedelta(seconds=-1), timedelta(days=1)])
def test_linger_that_cannot_be_is_refused_before_the_work_and_not_after_it(linger: Any) -> None:
    with pytest.raises(InvalidTtl, match="linger"), hold("customer:1", linger=linger):
        raise AssertionError("the body ran")


@pytest.mark.parametrize("wait", [10, timedelta(seconds=-1), None])
def test_wait_that_cannot_be_is_refused_by_its_name(wait: Any) -> None:
    with pytest.raises(InvalidTtl, match="wait"), hold("customer:1", wait=wait):
        raise AssertionError("the body ran")
