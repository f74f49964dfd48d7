"""Registering a token: what is in its way, and what becomes of the lease when the thread is stopped right after it."""

import threading
from typing import Any

import pytest
from django.db import connection, transaction

from leases import hold
from leases.errors import LeaseBusy, LeaseLost
from leases.models import Incident, LeaseRecord
from leases.resources import key_of
from tests.leases.conftest import steal
from tests.leases.threads import in_thread
from tests.ledger.models import Account

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


def test_thread_whose_name_cannot_be_stored_leases_as_any_other() -> None:
    def job() -> None:
        threading.current_thread().name = "a\0b"
        with hold("customer:1"):
            pass

    with in_thread(job):
        pass
    assert LeaseRecord.objects.get().thread == "ab"
