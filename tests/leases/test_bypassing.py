"""The bypass: honoured in its own transaction only, on record, and a matter of database roles."""

from contextlib import nullcontext
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction

import leases
from leases import hold
from leases.errors import NotHeld, ReasonMissing
from leases.models import Intervention
from tests.leases.test_fenced import RAW, WRITES, existing
from tests.ledger.models import Account, Entry

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("name", WRITES)
def test_every_write_of_the_orm_passes(name: str, account: Account) -> None:
    entry = existing(account)
    with leases.bypass(reason="repair"):
        WRITES[name](account, entry)


@pytest.mark.parametrize("name", RAW)
def test_every_raw_write_passes(name: str, account: Account) -> None:
    entry = existing(account)
    with leases.bypass(reason="repair"):
        RAW[name](account, entry)


def test_row_made_past_the_fence_says_so(account: Account) -> None:
    with leases.bypass(reason="repair"):
        Entry.objects.create(account=account)
    assert Entry.objects.get().token == 0


def test_it_is_on_record_with_who_and_why(account: Account) -> None:
    with leases.bypass(reason="restore of 3 May", by="ada"):
        Entry.objects.create(account=account)
    kept = Intervention.objects.get()
    assert (kept.action, kept.by, kept.reason) == (Intervention.Action.BYPASS, "ada", "restore of 3 May")
    assert kept.database_role == connection.settings_dict["USER"]


def test_it_needs_a_reason(account: Account) -> None:
    with pytest.raises(ReasonMissing), leases.bypass(reason=" "):
        pytest.fail("the body ran")


def test_failed_body_leaves_neither_rows_nor_a_record_of_them(account: Account) -> None:
    with pytest.raises(ZeroDivisionError), leases.bypass(reason="repair"):
        Entry.objects.create(account=account)
        _ = 1 / 0
    assert not Entry.objects.exists()
    assert not Intervention.objects.exists()


def test_it_ends_with_its_block_even_if_the_transaction_goes_on(account: Account) -> None:
    entry = existing(account)
    with transaction.atomic():
        with leases.bypass(reason="repair"):
            RAW["UPDATE"](account, entry)
        with pytest.raises(DatabaseError, match="not presented"), transaction.atomic():
            RAW["UPDATE"](account, entry)
        with pytest.raises(ZeroDivisionError), leases.bypass(reason="repair"):
            _ = 1 / 0
        with pytest.raises(DatabaseError, match="not presented"), transaction.atomic():
            RAW["UPDATE"](account, entry)
        with pytest.raises(NotHeld):
            Entry.objects.create(account=account)


def test_setting_of_one_transaction_is_not_honoured_in_the_next(account: Account) -> None:
    """A pooler or a careless session may carry the setting over; the transaction's id does not match then."""
    entry = existing(account)
    with leases.bypass(reason="repair"), connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('leases.presented')")
        opened = cursor.fetchone()[0]
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('leases.presented', %s, false)", [opened])
        with pytest.raises(DatabaseError, match="not presented"):
            RAW["UPDATE"](account, entry)
        cursor.execute("SELECT set_config('leases.presented', '', false)")


def test_it_does_not_reach_other_connections(account: Account) -> None:
    entry = existing(account)
    other = connection.copy()
    try:
        with leases.bypass(reason="repair"), other.cursor() as cursor, pytest.raises(DatabaseError, match="presented"):
            cursor.execute("UPDATE ledger_entry SET memo = 'raw' WHERE id = %s", [entry.pk])
    finally:
        other.close()


def test_bypass_inside_a_bypass_does_not_end_the_outer_one(account: Account) -> None:
    with leases.bypass(reason="outer"):
        with leases.bypass(reason="inner"):
            pass
        RAW["INSERT"](account, Entry())
    assert Intervention.objects.count() == 2


def test_lease_presented_inside_does_not_end_it(account: Account, resource: str) -> None:
    other = existing(Account.objects.create(name="Bob"))
    with hold(resource) as lease, leases.bypass(reason="repair"), lease.transaction():
        RAW["UPDATE"](account, other)


def test_role_that_may_not_insert_interventions_cannot_bypass(account: Account) -> None:
    entry = existing(account)
    with connection.cursor() as cursor:
        cursor.execute("DROP ROLE IF EXISTS leases_clerk")
        cursor.execute("CREATE ROLE leases_clerk")
        cursor.execute("GRANT SELECT, UPDATE ON ledger_entry TO leases_clerk")
        cursor.execute("SET ROLE leases_clerk")
        try:
            with (
                pytest.raises(DatabaseError, match="permission denied for table leases_intervention"),
                leases.bypass(reason="repair"),
            ):
                pytest.fail("the body ran")
            with pytest.raises((DatabaseError, psycopg.Error), match="not presented"):
                RAW["UPDATE"](account, entry)
        finally:
            cursor.execute("RESET ROLE")
            cursor.execute("DROP OWNED BY leases_clerk")
            cursor.execute("DROP ROLE leases_clerk")


def test_fixture_of_fenced_rows_is_loaded_past_the_fence(account: Account, tmp_path: Path) -> None:
    existing(account)
    dump = tmp_path / "entries.json"
    call_command("dumpdata", "ledger.entry", output=str(dump), stdout=StringIO())
    with leases.bypass(reason="restore"):
        Entry.objects.all().delete()
    with pytest.raises(DatabaseError, match="not presented"):
        call_command("loaddata", str(dump), stdout=StringIO())
    with leases.bypass(reason="restore"):
        call_command("loaddata", str(dump), stdout=StringIO())
    assert Entry.objects.count() == 1


def test_historical_model_of_a_migration_passes(account: Account, django_assert_num_queries: Any) -> None:
    from django.db.migrations.loader import MigrationLoader

    state = MigrationLoader(connection).project_state(("ledger", "0001_initial"))
    historical = state.apps.get_model("ledger", "Entry")
    with leases.bypass(reason="migration ledger.0002"):
        historical.objects.create(account_id=account.pk, token=0)
    with pytest.raises(DatabaseError, match="not presented"):
        historical.objects.update(memo="changed")


@pytest.mark.parametrize("within", [nullcontext, transaction.atomic], ids=["alone", "within a transaction"])
def test_bypass_that_is_to_be_rolled_back_ends_without_an_error(account: Account, within: Any) -> None:
    with within():
        with leases.bypass(reason="a rehearsal"):
            Entry.objects.create(account=account)
            transaction.set_rollback(True)
        with pytest.raises(DatabaseError, match="not presented"), transaction.atomic():
            RAW["INSERT"](account, Entry())
    assert not Entry.objects.exists()
    assert not Intervention.objects.exists()
