"""Every way to write a fenced row: with the lease, without it, and under a stale token."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import F

from leases import hold
from leases.errors import LeaseLost, NotHeld, StaleInstance, StaleToken
from leases.models import Incident
from tests.leases.conftest import steal
from tests.ledger.models import Account, Entry, Forgetful
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def sql(statement: str, *args: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, args)


def existing(account: Account) -> Entry:
    with hold(f"account:{account.pk}"):
        entry: Entry = Entry.objects.create(account=account, amount_minor=1)
    return entry


WRITES: dict[str, Callable[[Account, Entry], object]] = {
    "save": lambda account, entry: Entry(account=account).save(),
    "save again": lambda account, entry: Entry.objects.get(pk=entry.pk).save(),
    "save some fields": lambda account, entry: Entry.objects.get(pk=entry.pk).save(update_fields=["memo"]),
    "create": lambda account, entry: Entry.objects.create(account=account),
    "get_or_create": lambda account, entry: Entry.objects.get_or_create(account=account, memo="new"),
    "update_or_create": lambda account, entry: Entry.objects.update_or_create(
        pk=entry.pk, defaults={"memo": "changed"}
    ),
    "bulk_create": lambda account, entry: Entry.objects.bulk_create([Entry(account=account) for _ in range(3)]),
    "bulk_create or ignore": lambda account, entry: Entry.objects.bulk_create(
        [Entry(pk=entry.pk, account=account)], ignore_conflicts=True
    ),
    "bulk_update": lambda account, entry: Entry.objects.bulk_update([Entry.objects.get(pk=entry.pk)], ["memo"]),
    "update": lambda account, entry: Entry.objects.filter(pk=entry.pk).update(memo="changed"),
    "update with an expression": lambda account, entry: Entry.objects.filter(pk=entry.pk).update(
        amount_minor=F("amount_minor") + 1
    ),
    "save what raw() read": lambda account, entry: Entry.objects.raw("SELECT * FROM ledger_entry")[0].save(),
    "save what select_for_update() read": lambda account, entry: lock_and_save(entry),
    "delete a queryset": lambda account, entry: Entry.objects.filter(pk=entry.pk).delete(),
    "delete an instance": lambda account, entry: Entry.objects.get(pk=entry.pk).delete(),
    "create through a relation": lambda account, entry: account.entries.create(memo="related"),
    "update through a relation": lambda account, entry: account.entries.update(memo="related"),
}
RAW: dict[str, Callable[[Account, Entry], object]] = {
    "INSERT": lambda account, entry: sql(
        "INSERT INTO ledger_entry (account_id, amount_minor, memo, token) VALUES (%s, 1, '', 1)", account.pk
    ),
    "UPDATE": lambda account, entry: sql("UPDATE ledger_entry SET memo = 'raw' WHERE id = %s", entry.pk),
    "UPDATE of the token itself": lambda account, entry: sql(
        "UPDATE ledger_entry SET token = (SELECT token FROM leases_fence) WHERE id = %s", entry.pk
    ),
    "DELETE": lambda account, entry: sql("DELETE FROM ledger_entry WHERE id = %s", entry.pk),
    "ON CONFLICT DO UPDATE": lambda account, entry: sql(
        "INSERT INTO ledger_entry (id, account_id, amount_minor, memo, token) VALUES (%s, %s, 1, '', 1) "
        "ON CONFLICT (id) DO UPDATE SET memo = 'raw'",
        entry.pk,
        account.pk,
    ),
    "MERGE": lambda account, entry: sql(
        "MERGE INTO ledger_entry e USING (SELECT %s::bigint AS id) s ON e.id = s.id WHEN MATCHED THEN DELETE", entry.pk
    ),
    "COPY": lambda account, entry: copy(account),
    "delete of the parent": lambda account, entry: account.delete(),
    "cascade": lambda account, entry: sql(
        "WITH gone AS (DELETE FROM ledger_entry WHERE account_id = %s RETURNING 1) SELECT count(*) FROM gone",
        account.pk,
    ),
}


def lock_and_save(entry: Entry) -> None:
    with transaction.atomic():
        Entry.objects.select_for_update().get(pk=entry.pk).save()


def copy(account: Account) -> None:
    with (
        connection.cursor() as cursor,
        cursor.copy("COPY ledger_entry (account_id, amount_minor, memo, token) FROM STDIN") as rows,
    ):
        rows.write_row((account.pk, 1, "", 1))


@pytest.mark.parametrize("name", WRITES)
def test_write_is_accepted_under_the_lease(name: str, account: Account, resource: str) -> None:
    entry = existing(account)
    with hold(resource):
        WRITES[name](account, entry)


@pytest.mark.parametrize("name", WRITES)
def test_write_without_the_lease_is_refused_before_any_sql(
    name: str, account: Account, django_assert_num_queries: Any
) -> None:
    entry = existing(account)
    before = list(Entry.objects.values())
    with pytest.raises(NotHeld):
        WRITES[name](account, entry)
    assert list(Entry.objects.values()) == before


@pytest.mark.parametrize("name", WRITES)
def test_frozen_holder_cannot_write_after_takeover(name: str, account: Account, resource: str) -> None:
    # outbox B58
    entry = existing(account)
    before = list(Entry.objects.values())
    with pytest.raises(LeaseLost), hold(resource) as lease:
        steal(resource)
        with pytest.raises(StaleToken):
            WRITES[name](account, entry)
        assert not lease.is_held
    assert list(Entry.objects.values()) == before
    incident = wait_until(lambda: Incident.objects.filter(token=lease.token, fate="running").first())
    assert incident is not None


@pytest.mark.parametrize("name", WRITES)
def test_lease_on_another_resource_is_not_enough(name: str, account: Account) -> None:
    entry = existing(account)
    before = list(Entry.objects.values())
    with hold("account:0"), pytest.raises(NotHeld):
        WRITES[name](account, entry)
    assert list(Entry.objects.values()) == before


@pytest.mark.parametrize("name", RAW)
def test_raw_sql_is_accepted_in_a_transaction_of_the_lease(name: str, account: Account, resource: str) -> None:
    entry = existing(account)
    with hold(resource) as lease, lease.transaction():
        RAW[name](account, entry)


@pytest.mark.parametrize("name", RAW)
def test_raw_sql_without_a_lease_is_refused_by_the_database(name: str, account: Account) -> None:
    entry = existing(account)
    before = list(Entry.objects.values())
    with pytest.raises((DatabaseError, psycopg.Error), match="not presented: account:"):
        RAW[name](account, entry)
    assert list(Entry.objects.values()) == before


@pytest.mark.parametrize("name", RAW)
def test_raw_sql_outside_the_leases_transaction_is_refused(name: str, account: Account, resource: str) -> None:
    entry = existing(account)
    with hold(resource) as lease:
        with lease.transaction():
            pass
        with pytest.raises((DatabaseError, psycopg.Error), match="not presented"):
            RAW[name](account, entry)


@pytest.mark.parametrize("name", RAW)
def test_raw_sql_under_a_stale_token_is_refused(name: str, account: Account, resource: str) -> None:
    entry = existing(account)
    before = list(Entry.objects.values())
    with pytest.raises(LeaseLost), hold(resource) as lease:
        steal(resource)
        with pytest.raises(StaleToken), lease.transaction():
            RAW[name](account, entry)
    assert list(Entry.objects.values()) == before


def test_raw_sql_on_another_resource_is_refused_inside_the_leases_transaction(account: Account, resource: str) -> None:
    other = existing(Account.objects.create(name="Bob"))
    with hold(resource) as lease, pytest.raises(NotHeld) as refused, lease.transaction():
        RAW["UPDATE"](account, other)
    assert refused.value.resource == f"account:{other.account_id}"


def test_row_that_moves_needs_both_leases(account: Account, resource: str) -> None:
    other = Account.objects.create(name="Bob")
    entry = existing(account)
    with hold(resource), pytest.raises(NotHeld):
        Entry.objects.filter(pk=entry.pk).update(account=other)
    with hold(f"account:{other.pk}"), pytest.raises(NotHeld):
        Entry.objects.filter(pk=entry.pk).update(account=other)
    with hold(resource), hold(f"account:{other.pk}"):
        Entry.objects.filter(pk=entry.pk).update(account=other)
    assert Entry.objects.get(pk=entry.pk).account == other


def test_bulk_update_of_no_fields_is_refused_as_without_a_fence(account: Account, resource: str) -> None:
    entry = existing(account)
    with hold(resource):
        entry.refresh_from_db()
        with pytest.raises(ValueError, match="Field names"):
            Entry.objects.bulk_update([entry], [])


def test_refusal_by_the_database_hints_what_to_do(account: Account) -> None:
    with pytest.raises(DatabaseError) as refused:
        RAW["INSERT"](account, Entry())
    cause = refused.value.__cause__
    assert isinstance(cause, psycopg.Error)
    assert "lease.transaction()" in str(cause.diag.message_hint)


def test_cascade_of_a_foreign_key_is_refused_by_the_database(account: Account, resource: str) -> None:
    existing(account)
    sql(
        "ALTER TABLE ledger_entry ADD CONSTRAINT cascading"
        " FOREIGN KEY (account_id) REFERENCES ledger_account ON DELETE CASCADE"
    )
    try:
        with pytest.raises(DatabaseError, match="not presented: account:"):
            sql("DELETE FROM ledger_account")
        with hold(resource) as lease, lease.transaction():
            sql("DELETE FROM ledger_account")
    finally:
        sql("ALTER TABLE ledger_entry DROP CONSTRAINT cascading")
    assert not Entry.objects.exists()


def test_statement_that_touches_no_row_does_not_commit_its_neighbours_under_a_stale_token(
    account: Account, resource: str
) -> None:
    with pytest.raises(LeaseLost), hold(resource) as lease:
        steal(resource)
        with pytest.raises(StaleToken), lease.transaction():
            Account.objects.create(name="written by a stale holder")
    assert not Account.objects.filter(name="written by a stale holder").exists()


def test_presented_token_does_not_outlive_a_rolled_back_savepoint(account: Account, resource: str) -> None:
    with hold(resource) as lease, transaction.atomic():
        with pytest.raises(ZeroDivisionError), lease.transaction():
            _ = 1 / 0
        with pytest.raises(DatabaseError, match="not presented"), transaction.atomic():
            RAW["INSERT"](account, Entry())
        Entry.objects.create(account=account)
    assert Entry.objects.count() == 1


def test_presented_token_does_not_leak_into_the_next_transaction(account: Account, resource: str) -> None:
    with hold(resource) as lease:
        with lease.transaction():
            Entry.objects.create(account=account)
        with pytest.raises(DatabaseError, match="not presented"), transaction.atomic():
            sql("SELECT set_config('leases.presented', current_setting('leases.presented'), true)")
            RAW["INSERT"](account, Entry())


def test_stale_transaction_cannot_commit_after_the_successor_registered(account: Account, resource: str) -> None:
    # locks L72
    """locks L72: with a plain SELECT, or a foreign key's lock, the first would commit after the second."""
    import threading

    from django.db import connections

    registered = threading.Event()

    def successor() -> None:
        steal(resource)
        registered.set()
        connections.close_all()

    with pytest.raises(LeaseLost), hold(resource, ttl=timedelta(seconds=30)) as lease:
        with lease.transaction():
            thread = threading.Thread(target=successor)
            thread.start()
            wait_until(
                lambda: _waiting_for_a_lock() == 1, message="the successor did not wait for the open transaction"
            )
            Entry.objects.create(account=account)
            assert not registered.is_set()
        thread.join(10)
        assert registered.is_set()
        with pytest.raises(StaleToken):
            Entry.objects.create(account=account)
    assert Entry.objects.count() == 1


def _waiting_for_a_lock() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return int(cursor.fetchone()[0])


def test_instance_read_before_the_lease_is_refused(account: Account, resource: str) -> None:
    entry = existing(account)
    with hold(resource):
        with pytest.raises(StaleInstance):
            entry.save()
        with pytest.raises(StaleInstance):
            Entry.objects.bulk_update([entry], ["memo"])
        entry.refresh_from_db()
        entry.save()
        entry.save()


def test_row_remembers_the_token_it_was_last_written_under(account: Account, resource: str) -> None:
    entry = existing(account)
    with hold(resource) as lease:
        Entry.objects.filter(pk=entry.pk).update(memo="x")
        assert Entry.objects.get(pk=entry.pk).token == lease.token > entry.token
    with hold(resource) as lease:
        upsert = {"update_conflicts": True, "unique_fields": ["id"], "update_fields": ["memo"]}
        Entry.objects.bulk_create([Entry(pk=entry.pk, account=account, memo="y")], **upsert)
        assert Entry.objects.filter(memo="y", token=lease.token).exists()
    with hold(resource) as lease:
        Entry.objects.bulk_create([Entry(pk=entry.pk, account=account, memo="z")], None, False, True, ["memo"], ["id"])
        assert Entry.objects.filter(memo="z", token=lease.token).exists()
    with hold(resource) as lease:
        upsert["update_fields"] = ["memo", "token"]  # as of somebody who names all columns
        Entry.objects.bulk_create([Entry(pk=entry.pk, account=account, memo="a")], **upsert)
        assert Entry.objects.filter(memo="a", token=lease.token).exists()


def test_upsert_that_meets_a_row_of_another_resource_is_refused(account: Account, resource: str) -> None:
    entry = existing(Account.objects.create(name="Grace"))
    upsert = {"update_conflicts": True, "unique_fields": ["id"], "update_fields": ["memo"]}
    with hold(resource), pytest.raises(NotHeld):
        Entry.objects.bulk_create([Entry(pk=entry.pk, account=account, memo="mine")], **upsert)
    assert Entry.objects.get().memo == ""


def test_model_whose_meta_forgets_to_inherit_is_fenced() -> None:
    with hold("book's EU/7"):
        Forgetful.objects.create(account_id=7, region="EU")
    with pytest.raises(DatabaseError, match="not presented: book's EU/7"):
        sql("DELETE FROM ledger_forgetful")
    with pytest.raises(NotHeld):
        Forgetful.objects.create(account_id=8, region="EU")


def test_session_cannot_switch_the_trigger_off_as_pgtriggers_own_could(account: Account) -> None:
    import pgtrigger

    entry = existing(account)
    with pytest.raises(DatabaseError, match="not presented"), pgtrigger.ignore("ledger.Entry:fence_update"):
        RAW["UPDATE"](account, entry)


def test_hundred_thousand_rows_cost_one_look_per_resource(account: Account, resource: str) -> None:
    with hold(resource) as lease, lease.transaction():
        sql(
            "INSERT INTO ledger_entry (account_id, amount_minor, memo, token) "
            "SELECT %s, i, '', 1 FROM generate_series(1, 100000) AS i",
            account.pk,
        )
    assert Entry.objects.count() == 100_000
