"""Holders in transactions of stricter isolation, whose snapshot stays what it was."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import OperationalError, connection, transaction

from leases import fence, hold, lent
from leases.errors import FenceMissing, LeaseLost, OldSnapshot, StaleToken
from leases.lease import Lease
from leases.models import Fence, Incident
from tests.leases.conftest import steal
from tests.leases.threads import in_thread
from tests.ledger.models import Account, Entry
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"]),
]
SERIALIZATION_FAILURE = "40001"


@contextmanager
def isolated(level: str) -> Iterator[None]:
    """A transaction of that level whose snapshot is taken."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        cursor.execute("SELECT count(*) FROM ledger_account")
        yield


def elsewhere(work: object) -> None:
    with in_thread(work):  # type: ignore[arg-type]
        pass


def add(account: Account, lease: Lease) -> None:
    with lease.transaction():
        Entry.objects.create(account=account)


def test_token_superseded_before_the_snapshot_is_stale(level: str, account: Account, resource: str) -> None:
    with pytest.raises(LeaseLost), hold(resource) as lease:
        steal(resource)
        with pytest.raises(StaleToken), isolated(level):
            add(account, lease)
    assert not Entry.objects.exists()


def test_token_superseded_after_the_snapshot_fails_to_serialize_and_then_is_stale(
    level: str, account: Account, resource: str
) -> None:
    with pytest.raises(LeaseLost), hold(resource) as lease:
        with pytest.raises(OperationalError) as failure, isolated(level):
            elsewhere(lambda: steal(resource))
            add(account, lease)
        assert fence.sqlstate(failure.value) == SERIALIZATION_FAILURE
        lease.check()
        with pytest.raises(StaleToken), isolated(level):
            add(account, lease)
    assert not Entry.objects.exists()


@pytest.mark.parametrize("leased_before", [True, False], ids=["leased before", "first lease"])
def test_transaction_older_than_the_lease_it_works_under_is_told_to_begin_anew(
    leased_before: bool, level: str, account: Account, resource: str
) -> None:
    """In this thread a lease cannot be granted then, but another thread can lend it one."""
    snapshot_taken, granted = threading.Event(), threading.Event()
    leases: list[Lease] = []

    def borrower() -> None:
        with pytest.raises(OldSnapshot), isolated(level):
            snapshot_taken.set()
            assert granted.wait(10)
            with lent(leases[0]):
                add(account, leases[0])
        with lent(leases[0]), isolated(level):
            add(account, leases[0])

    if leased_before:
        with hold(resource):
            pass
    with in_thread(borrower):
        assert snapshot_taken.wait(10)
        with hold(resource) as lease:
            leases.append(lease)
            granted.set()
            wait_until(Entry.objects.exists)
            lease.check()
    assert not Incident.objects.exists()


def test_fence_that_the_database_lost_is_missing_whatever_the_snapshot(
    level: str, account: Account, resource: str
) -> None:
    with hold(resource) as lease:
        Fence.objects.filter(resource=resource).delete()
        with pytest.raises(FenceMissing), isolated(level):
            add(account, lease)
    assert not Entry.objects.exists()


def test_serialization_failure_comes_through_and_the_lease_serves_the_next_attempt(
    level: str, account: Account, resource: str
) -> None:
    def rename(name: str) -> None:
        Account.objects.filter(pk=account.pk).update(name=name)

    with hold(resource) as lease:
        with pytest.raises(OperationalError) as failure, isolated(level):
            elsewhere(lambda: rename("Bob"))
            with lease.transaction():
                Entry.objects.create(account=account)
                rename("Cid")
        assert fence.sqlstate(failure.value) == SERIALIZATION_FAILURE
        assert not Entry.objects.exists()
        with isolated(level), lease.transaction():
            Entry.objects.create(account=account)
            rename("Cid")
    assert Entry.objects.count() == 1
    assert not Incident.objects.exists()


def test_serialization_failure_at_the_commit_comes_through_as_well(level: str, account: Account, resource: str) -> None:
    """Two read what the other writes. At REPEATABLE READ both commit: that is what the level allows."""

    def counts_entries_and_opens_an_account() -> None:
        with isolated(level):
            Entry.objects.count()
            Account.objects.create(name="Bob")

    def attempt() -> None:
        with isolated(level), lease.transaction():
            Entry.objects.create(account=account)
            elsewhere(counts_entries_and_opens_an_account)

    with hold(resource) as lease:
        if level == "SERIALIZABLE":
            with pytest.raises(OperationalError) as failure:
                attempt()
            assert fence.sqlstate(failure.value) == SERIALIZATION_FAILURE
            assert not Entry.objects.exists()
            with isolated(level):
                add(account, lease)
        else:
            attempt()
    assert Entry.objects.count() == 1
    assert not Incident.objects.exists()
