"""A database that forgot what it had promised: nothing is leased until every fence was raised."""

import pytest
from django.db import connection
from django.db.models import Model

from leases import forgetting, hold
from leases.errors import DatabaseForgot, LeaseLost, StaleToken
from leases.models import DatabaseIdentity, Fence, Intervention, LeaseRecord
from tests.leases.conftest import steal
from tests.ledger.models import Account, Entry

pytestmark = pytest.mark.django_db(transaction=True)


def restore_elsewhere() -> None:
    """Make the stored identity that of another database, and this connection a new one."""
    DatabaseIdentity.objects.update(timeline=99)
    connection.close()


def test_nothing_is_leased_on_another_timeline_until_put_right() -> None:
    with hold("customer:1"):
        pass
    restore_elsewhere()
    with pytest.raises(DatabaseForgot) as forgot, hold("customer:1"):
        pytest.fail("leased on a database that may have lost its fences")
    assert forgot.value.stored[1] == 99
    connection.close()
    with pytest.raises(DatabaseForgot), hold("customer:1"):
        pass
    assert forgetting.put_right("default", dry_run=True) == 1
    assert not Intervention.objects.exists()
    assert forgetting.put_right("default") == 1
    assert Intervention.objects.get().action == Intervention.Action.RAISE_FENCES
    with hold("customer:1"):
        pass


def make_table_anew(model: type[Model]) -> None:
    """Do what pg_restore --clean does: drop a table, create it, copy its rows back."""
    rows = list(model._default_manager.all())
    with connection.schema_editor() as editor:
        editor.delete_model(model)
        editor.create_model(model)
    model._default_manager.bulk_create(rows)
    connection.close()


def test_nothing_is_leased_after_a_dump_was_restored_into_the_same_database_until_put_right() -> None:
    with hold("customer:1"):
        pass
    make_table_anew(DatabaseIdentity)
    with pytest.raises(DatabaseForgot) as forgot, hold("customer:1"):
        pytest.fail("leased on a restored database that may have lost its fences")
    assert forgot.value.stored[:3] == forgot.value.found[:3]
    assert forgetting.put_right("default") == 1
    with hold("customer:1"):
        pass


def test_holder_whose_successor_was_forgotten_cannot_write_after_the_fences_were_raised(
    account: Account, resource: str
) -> None:
    with pytest.raises(LeaseLost), hold(resource) as lease:
        steal(resource)
        # The restore brings back the fence and the record as they were before the successor.
        LeaseRecord.objects.exclude(token=lease.token).delete()
        Fence.objects.filter(resource=resource).update(token=lease.token, holder=lease.holder)
        restore_elsewhere()
        forgetting.put_right("default")
        with pytest.raises(StaleToken):
            Entry.objects.create(account=account)
    assert not Entry.objects.exists()


def test_synchronous_failover_loses_nothing_and_raises_nothing(account: Account, resource: str) -> None:
    with hold(resource) as lease:
        restore_elsewhere()
        assert forgetting.put_right("default", nothing_lost=True) == 0
        Entry.objects.create(account=account)
    assert Fence.objects.get(resource=resource).token == lease.token
