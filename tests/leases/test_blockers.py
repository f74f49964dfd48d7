"""Transactions of former holders, in the way of the next one: those that stand still are ended, others are not."""

import threading
from datetime import timedelta

import pytest
from django.db import OperationalError, connection, transaction
from django_redis import get_redis_connection

from leases import blockers, fence, hold
from leases.errors import LeaseBusy, LeaseLost
from leases.resources import key_of
from tests.leases.conftest import steal
from tests.leases.threads import in_thread
from tests.ledger.models import Account, Entry

pytestmark = pytest.mark.django_db(transaction=True)


def test_frozen_holder_with_an_open_transaction_is_cleared_out_of_the_way(account: Account, resource: str) -> None:
    # locks L73
    """locks L73: without it the next holder waits for as long as the frozen one sleeps."""
    opened, taken = threading.Event(), threading.Event()

    def frozen() -> None:
        lost = (LeaseLost, OperationalError)
        with pytest.raises(lost), hold(resource, ttl=timedelta(seconds=30)) as lease, lease.transaction():
            Entry.objects.create(account=account)
            opened.set()
            taken.wait(20)

    with in_thread(frozen):
        assert opened.wait(10)
        taken_by = steal_as_a_holder(resource)
        taken.set()
    assert taken_by
    assert Entry.objects.count() == 0


def steal_as_a_holder(resource: str) -> int:
    """Take the lease through the front door after its key vanished."""
    get_redis_connection("leases").delete(key_of(resource))
    with hold(resource, wait=timedelta(seconds=5)) as lease:
        return lease.token


def test_holder_that_is_busy_in_its_transaction_is_not_cleared_and_the_next_is_told_to_wait(
    account: Account, resource: str
) -> None:
    opened, done = threading.Event(), threading.Event()

    def busy() -> None:
        token = steal(resource)
        with transaction.atomic(), connection.cursor() as cursor:
            fence.present(resource, token, ttl_ms=60_000, using="default")
            opened.set()
            while not done.is_set():
                cursor.execute("SELECT pg_sleep(0.05)")

    with in_thread(busy):
        assert opened.wait(10)
        get_redis_connection("leases").delete(key_of(resource))
        with pytest.raises(LeaseBusy, match="whose transaction is still open"), hold(resource):
            pass
        assert get_redis_connection("leases").get(key_of(resource)) is None
        done.set()


def test_pooled_connection_that_serves_somebody_else_by_now_has_nobody_cleared_out_of_its_way(account: Account) -> None:
    """A pooler may have given the connection whose number was asked for to another client, who waits for a third."""

    def third() -> None:
        with transaction.atomic():
            Account.objects.filter(pk=account.pk).update(name="the third's")
            locked.set()
            assert over.wait(20)

    locked, over = threading.Event(), threading.Event()
    with in_thread(third):
        assert locked.wait(10)
        with blockers.being_cleared("default"), pytest.raises(OperationalError), transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '1500ms'")
            Account.objects.filter(pk=account.pk).update(name="the other's")
        over.set()
    account.refresh_from_db()
    assert account.name == "the third's"
