"""A fresh token does not write what was read before its lease was granted."""

import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy as copied
from typing import Any

import pytest
from django.db import connection, connections, models, transaction
from django.db.models.signals import pre_delete

from leases import fenced, hold
from leases.clock import boottime
from leases.errors import NotHeld, StaleInstance
from tests.leases.test_fenced import existing
from tests.leases.threads import in_thread
from tests.ledger.models import Account, Entry, Forgetful
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def changed_since(entry: Entry, resource: str) -> None:
    with hold(resource):
        newer = Entry.objects.get(pk=entry.pk)
        newer.memo = "newer"
        newer.save()


def test_refresh_of_one_field_does_not_make_an_old_instance_new(account: Account, resource: str) -> None:
    entry = existing(account)
    changed_since(entry, resource)
    with hold(resource):
        entry.refresh_from_db(fields=["amount_minor"])
        with pytest.raises(StaleInstance):
            entry.save()
        entry.refresh_from_db(None, None)
        entry.save()
    assert Entry.objects.get().memo == "newer"


def test_look_at_a_deferred_field_does_not_make_an_old_instance_new(account: Account, resource: str) -> None:
    entry = Entry.objects.defer("amount_minor").get(pk=existing(account).pk)
    changed_since(entry, resource)
    with hold(resource):
        assert entry.amount_minor == 1
        with pytest.raises(StaleInstance):
            entry.save()


def test_instance_out_of_a_cache_is_not_new_because_another_machines_clock_is_ahead(
    account: Account, resource: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = existing(account)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(fenced, "_HERE", "another machine")
        elsewhere.setattr(fenced, "boottime", lambda: boottime() + 1e6)
        pickled = pickle.dumps(Entry.objects.get(pk=entry.pk))
    with hold(resource):
        with pytest.raises(StaleInstance):
            pickle.loads(pickled).save()  # noqa: S301  # made above
        copied(Entry.objects.get(pk=entry.pk)).save()


def test_rows_of_an_iterator_begun_before_the_lease_are_stale_though_they_come_out_under_it(
    account: Account, resource: str
) -> None:
    first = existing(account)
    second = existing(account)
    rows = Entry.objects.select_related("account").order_by("pk").iterator()
    assert next(rows) == first
    changed_since(second, resource)
    with hold(resource):
        with pytest.raises(StaleInstance):
            next(rows).save()
        next(Entry.objects.filter(pk=second.pk).iterator()).save()
    assert Entry.objects.get(pk=second.pk).memo == "newer"


def test_row_of_a_query_begun_in_another_thread_before_the_lease_is_stale(account: Account, resource: str) -> None:
    entry = existing(account)
    reading, granted = threading.Event(), threading.Event()

    def late(value: object, *args: object) -> object:
        reading.set()
        assert granted.wait(10)
        return value

    class Late(models.Value):
        """A column that comes when it is let go on; its query has begun by then."""

        def get_db_converters(self, connection: object) -> list[Any]:
            return [late]

    read: list[Entry] = []
    with in_thread(lambda: read.extend(Entry.objects.annotate(late=Late(1)))):
        assert reading.wait(10)
        changed_since(entry, resource)
        with hold(resource):
            granted.set()
            wait_until(lambda: read)
            with pytest.raises(StaleInstance):
                read[0].save()


def moved_while_another_wrote(entry: Entry, resource: str) -> Entry:
    """Read `entry` before the lease on its account is granted, while another holder of that account changes it."""
    read: Entry = Entry.objects.get(pk=entry.pk)
    with in_thread(lambda: changed_since(entry, resource)):
        pass
    return read


def test_row_that_moves_is_stale_if_it_was_read_before_the_lease_it_comes_from(account: Account, resource: str) -> None:
    entry = existing(account)
    target = Account.objects.create(name="Bob")
    with hold(f"account:{target.pk}"):
        read = moved_while_another_wrote(entry, resource)
        with hold(resource):
            read.account = target
            for write in (read.save, lambda: Entry.objects.bulk_update([read], ["account", "memo"])):
                with pytest.raises(StaleInstance):
                    write()
            read.refresh_from_db()
            read.account = target
            read.save()
            read.memo = "and once more"
            read.save()
    assert Entry.objects.get().account == target


def test_row_whose_account_was_not_read_is_stale_before_any_lease_that_is_held(account: Account, resource: str) -> None:
    entry = existing(account)
    target = Account.objects.create(name="Bob")
    with hold(f"account:{target.pk}"):
        read = Entry.objects.defer("account").get(pk=entry.pk)
        with hold(resource):
            read.account = target
            with pytest.raises(StaleInstance):
                read.save()


def test_row_that_moves_without_the_lease_it_comes_from_is_refused_before_any_sql(account: Account) -> None:
    entry = existing(account)
    target = Account.objects.create(name="Bob")
    with hold(f"account:{target.pk}"):
        read = Entry.objects.get(pk=entry.pk)
        read.account = target
        with pytest.raises(NotHeld, match=f"account:{account.pk}"):
            read.save()


def test_write_of_other_fields_does_not_forget_where_the_row_is(account: Account, resource: str) -> None:
    entry = existing(account)
    target = Account.objects.create(name="Bob")
    with hold(f"account:{target.pk}"):
        with hold(resource):
            read = Entry.objects.get(pk=entry.pk)
            read.account = target
            read.save(update_fields=["memo"])
        with in_thread(lambda: changed_since(entry, resource)):
            pass
        with hold(resource), pytest.raises(StaleInstance):
            read.save()
    assert Entry.objects.get().memo == "newer"


def test_row_whose_move_was_rolled_back_is_stale_once_another_wrote_it_where_it_was(
    account: Account, resource: str
) -> None:
    entry = existing(account)
    target = Account.objects.create(name="Bob")
    with hold(f"account:{target.pk}"):
        with hold(resource):
            read = Entry.objects.get(pk=entry.pk)
            read.account = target
            with pytest.raises(RuntimeError), transaction.atomic():
                read.save()
                raise RuntimeError
        with in_thread(lambda: changed_since(entry, resource)):
            pass
        with hold(resource), pytest.raises(StaleInstance):
            read.save()
    assert Entry.objects.get().memo == "newer"


def test_row_read_from_a_replica_is_stale_though_it_was_read_under_the_lease(
    account: Account, resource: str, django_db_blocker: Any
) -> None:
    entry = existing(account)
    with django_db_blocker.unblock(), hold(resource), lagging_replica():
        changed_since(entry, resource)
        read = Entry.objects.using("replica").get(pk=entry.pk)
        writes: list[Callable[..., object]] = [read.save, read.delete]
        for write in writes:
            with pytest.raises(StaleInstance, match=r"from database 'replica'.*using\('default'\)"):
                write(using="default")
        read.refresh_from_db(using="default")
        read.save(using="default")
    assert Entry.objects.get().memo == "newer"


@contextmanager
def lagging_replica() -> Iterator[None]:
    """Have the alias `replica` show the database as it is now."""
    connections.databases["replica"] = connections.databases["default"]
    try:
        with transaction.atomic(using="replica"), connections["replica"].cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            cursor.execute("SELECT 1")
            yield
    finally:
        connections["replica"].close()
        del connections["replica"]
        del connections.databases["replica"]


def test_delete_of_an_instance_read_before_the_lease_is_refused(account: Account, resource: str) -> None:
    entry = existing(account)
    changed_since(entry, resource)
    with hold(resource):
        with pytest.raises(StaleInstance):
            entry.delete()
        entry.refresh_from_db()
        entry.delete()
    assert not Entry.objects.exists()


def test_cascade_to_a_row_of_another_lease_that_is_held_too_is_presented_for_it(
    account: Account, resource: str
) -> None:
    entry = existing(account)
    with hold("book's a/1") as other, hold(resource):
        row = Forgetful.objects.create(account_id=1, region="a")
        pre_delete.connect(delete_forgetful, sender=Entry)
        try:
            entry.refresh_from_db()
            entry.delete()
        finally:
            pre_delete.disconnect(delete_forgetful, sender=Entry)
        assert other.is_held
    assert not Forgetful.objects.filter(pk=row.pk).exists()


def delete_forgetful(**kwargs: object) -> None:
    """As a cascade does: in the same transaction, below the models."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM ledger_forgetful")
