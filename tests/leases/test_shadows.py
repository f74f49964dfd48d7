"""Other tables of the same name, which a session finds in place of the real ones, do not get past the fence."""

from collections.abc import Iterator

import pytest
from django.db import connection
from django_redis import get_redis_connection

from leases import fence, hold, once
from leases.breaking import break_lease
from leases.errors import NotHeld, TableShadowed
from leases.models import Receipt
from leases.resources import key_of
from leases.triggers import fence_triggers
from tests.leases.conftest import steal
from tests.leases.test_fenced import RAW, sql
from tests.ledger.models import Account, Entry

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def session_of_its_own() -> Iterator[None]:
    yield
    connection.close()


def shadow(table: str) -> None:
    sql(f"CREATE TEMPORARY TABLE {table} (LIKE public.{table} INCLUDING ALL)")


@pytest.fixture
def other_schema() -> Iterator[str]:
    sql("CREATE SCHEMA other")
    yield "other"
    sql("DROP SCHEMA other CASCADE")


def install_entries_in(schema: str) -> None:
    """What a migration does under a search_path that begins with `schema`."""
    sql(f"SET search_path = {schema}, public")
    sql(f"CREATE TABLE {schema}.ledger_entry (LIKE public.ledger_entry INCLUDING ALL)")
    for trigger in fence_triggers(Entry.lease_resource):
        with connection.cursor() as cursor:
            cursor.execute(trigger.compile(Entry).install_sql)


@pytest.mark.parametrize("table", ["leases_fence", "leases_leaserecord"])
def test_nothing_is_leased_in_a_session_with_a_temporary_table_in_place_of_the_real_one(table: str) -> None:
    shadow(table)
    with pytest.raises(TableShadowed, match="a temporary table"), hold("customer:1"):
        pass
    assert get_redis_connection("leases").get(key_of("customer:1")) is None
    sql(f"DROP TABLE pg_temp.{table}")
    with hold("customer:1"):
        pass


@pytest.mark.parametrize("write", ["through the model", "raw"])
def test_stale_token_is_not_proved_by_a_temporary_copy_of_the_fence(
    write: str, account: Account, resource: str
) -> None:
    with hold(resource) as lease:
        steal(resource)
        shadow("leases_fence")
        sql("INSERT INTO pg_temp.leases_fence VALUES (%s, %s, 'copied', now())", resource, lease.token)
        with pytest.raises(TableShadowed), lease.transaction():
            if write == "raw":
                RAW["INSERT"](account, Entry())
            else:
                Entry.objects.create(account=account)
        assert not Entry.objects.exists()


def test_holder_is_not_taken_for_broken_because_a_temporary_copy_of_the_fence_was_raised(resource: str) -> None:
    with hold(resource) as lease:
        shadow("leases_fence")
        with pytest.raises(TableShadowed):
            break_lease(resource, reason="it hangs", by="ada")
        sql("DROP TABLE pg_temp.leases_fence")
        lease.check()
        assert get_redis_connection("leases").get(key_of(resource)) is not None


@pytest.mark.parametrize("on_crash", [None, "retry"])
def test_receipt_is_not_left_in_a_temporary_table(on_crash: str | None) -> None:
    ran = []
    shadow("leases_receipt")
    job = once("welcome:{user_id}", on_crash=on_crash)(lambda user_id: ran.append(user_id))  # type: ignore[arg-type]
    with pytest.raises(TableShadowed):
        job(7)
    sql("DROP TABLE pg_temp.leases_receipt")
    if on_crash is not None:
        assert not ran
    assert not Receipt.objects.exists()


def test_token_presented_on_a_copy_of_the_fence_in_another_schema_is_refused(
    account: Account, resource: str, other_schema: str
) -> None:
    sql(f"CREATE TABLE {other_schema}.leases_fence (LIKE public.leases_fence INCLUDING ALL)")
    sql(f"SET search_path = {other_schema}, public")
    with hold(resource), pytest.raises(TableShadowed, match=r"presented other\.leases_fence, but .*ledger_entry"):
        Entry.objects.create(account=account)
    assert not Entry.objects.exists()


def test_token_of_a_copy_of_the_fence_does_not_ride_on_one_that_was_presented_on_the_real_one(
    account: Account, resource: str, other_schema: str
) -> None:
    other = Account.objects.create(name="Bob")
    sql(f"CREATE TABLE {other_schema}.leases_fence (LIKE public.leases_fence INCLUDING ALL)")
    sql(f"INSERT INTO {other_schema}.leases_fence VALUES (%s, 1, 'copied', now())", f"account:{other.pk}")
    with hold(resource) as lease, pytest.raises(NotHeld), lease.transaction():
        sql(f"SET LOCAL search_path = {other_schema}, public")
        fence.present(f"account:{other.pk}", 1, ttl_ms=6000, using="default")
        sql("SET LOCAL search_path = public")
        fence.present(resource, lease.token, ttl_ms=6000, using="default")
        RAW["INSERT"](other, Entry())


def test_schema_per_tenant_with_fences_of_its_own(account: Account, resource: str, other_schema: str) -> None:
    for table in ("leases_fence", "leases_leaserecord"):
        sql(f"CREATE TABLE {other_schema}.{table} (LIKE public.{table} INCLUDING ALL)")
    install_entries_in(other_schema)
    with hold(resource):
        Entry.objects.create(account=account)
    with pytest.raises(Exception, match="not presented"):
        sql(f"DELETE FROM {other_schema}.ledger_entry")
    sql("SET search_path = public")
    assert not Entry.objects.exists()


def test_schema_per_tenant_with_fences_that_all_share(account: Account, resource: str, other_schema: str) -> None:
    install_entries_in(other_schema)
    with hold(resource):
        Entry.objects.create(account=account)
    with pytest.raises(Exception, match="not presented"):
        sql(f"DELETE FROM {other_schema}.ledger_entry")
