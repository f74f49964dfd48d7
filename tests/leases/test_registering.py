"""Registering a token: what is in its way, and what becomes of the lease when the thread is stopped right after it."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from leases import fence, hold, redis_store
from leases.clock import boottime
from leases.errors import LeaseBusy, LeaseLost
from leases.keeper import keeper
from leases.models import Incident, LeaseRecord
from leases.resources import key_of
from leases.signals import incident_reported
from tests.leases.conftest import steal
from tests.leases.threads import in_thread
from tests.ledger.models import Account
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_migration_that_idles_over_a_locked_table_is_not_ended_by_a_registration() -> None:
    def migrate() -> None:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("LOCK TABLE leases_leaserecord IN ACCESS EXCLUSIVE MODE")
            locked.set()
            assert over.wait(20)
            Account.objects.create(name="migrated")

    locked, over = threading.Event(), threading.Event()
    with in_thread(migrate):
        assert locked.wait(10)
        with pytest.raises(LeaseBusy), hold("customer:1"):
            pass
        over.set()
    assert Account.objects.filter(name="migrated").exists()


def test_lease_is_given_back_when_the_outer_one_is_lost_right_after_its_registration(redis: Any) -> None:
    """The holder before crashed: the report of that is SQL, which says that the outer lease is lost."""

    def lose_the_outer_one(execute: Any, sql: str, *args: Any) -> Any:
        result = execute(sql, *args)
        if "leases_register" in sql:
            outer.lose(Incident.Detector.RENEWAL_REFUSED)
        return result

    steal("customer:2")
    redis.delete(key_of("customer:2"))
    with (
        pytest.raises(LeaseLost, match="customer:1"),
        hold("customer:1") as outer,
        connection.execute_wrapper(lose_the_outer_one),
        hold("customer:2"),
    ):
        raise AssertionError("the body ran")
    assert redis.get(key_of("customer:2")) is None
    assert LeaseRecord.objects.filter(resource="customer:2").latest("id").end == LeaseRecord.End.RELEASED


def test_thread_that_is_stopped_while_it_registers_leaves_neither_key_nor_unreleased_record(
    redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = fence.register

    def stopped(*args: Any, **kwargs: Any) -> Any:
        register(*args, **kwargs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(fence, "register", stopped)
        with pytest.raises(KeyboardInterrupt), hold("customer:1"):
            raise AssertionError("the body ran")
    assert redis.get(key_of("customer:1")) is None
    assert LeaseRecord.objects.get().end == LeaseRecord.End.RELEASED


def test_thread_that_is_stopped_while_it_waits_for_redis_leaves_no_key(
    redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire = redis_store.acquire

    def stopped(*args: Any, **kwargs: Any) -> Any:
        patched.undo()
        acquire(*args, **kwargs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(redis_store, "acquire", stopped)
        with pytest.raises(KeyboardInterrupt), hold("customer:1"):
            raise AssertionError("the body ran")
    assert redis.get(key_of("customer:1")) is None


@pytest.mark.parametrize("server", [fence, redis_store])
def test_thread_that_is_stopped_while_it_gives_back_leaves_neither_key_nor_unreleased_record(
    server: Any, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*args: Any, **kwargs: Any) -> Any:
        patched.undo()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(server, "release", stopped)
        with pytest.raises(KeyboardInterrupt), hold("customer:1"):
            pass
    assert redis.get(key_of("customer:1")) is None
    assert LeaseRecord.objects.get().end == LeaseRecord.End.RELEASED
    assert not Incident.objects.exists()


def test_receiver_of_the_former_holders_incident_that_is_slow_does_not_use_up_the_next_ones_lease(redis: Any) -> None:
    def tell(**kwargs: Any) -> None:
        wait_until(lambda: any(lease.deadline > boottime() + 0.5 for lease in keeper.kept()), timeout=2)
        over_at = boottime() + 0.7
        wait_until(lambda: boottime() > over_at)

    steal("customer:1")
    redis.delete(key_of("customer:1"))
    incident_reported.connect(tell)
    try:
        with hold("customer:1", ttl=timedelta(milliseconds=600)):
            assert Incident.objects.exists()
    finally:
        incident_reported.disconnect(tell)


def test_thread_whose_name_cannot_be_stored_leases_as_any_other() -> None:
    def job() -> None:
        threading.current_thread().name = "a\0b"
        with hold("customer:1"):
            pass

    with in_thread(job):
        pass
    assert LeaseRecord.objects.get().thread == "ab"
