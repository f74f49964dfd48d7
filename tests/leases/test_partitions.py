"""A fenced table that is partitioned: what is written through the parent meets the fence, and a partition that is named
directly does if it has triggers of its own, which leases.E023 asks for.
"""

from collections.abc import Iterator

import psycopg
import pytest
from django.core.checks import CheckMessage
from django.db import DatabaseError, connection

from leases import hold
from leases.checks import databases
from leases.errors import NotHeld
from leases.triggers import fence_triggers
from tests.leases.test_fenced import RAW, WRITES, existing, sql
from tests.ledger.models import Account, Entry

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def partitioned() -> Iterator[None]:
    """Entries in two partitions by id, in a schema that is found before the ordinary table."""
    sql("CREATE SCHEMA parts")
    sql("SET search_path = parts, public")
    sql("CREATE SEQUENCE entry_id")
    sql(
        "CREATE TABLE parts.ledger_entry (LIKE public.ledger_entry, PRIMARY KEY (id),"
        " FOREIGN KEY (account_id) REFERENCES public.ledger_account) PARTITION BY RANGE (id)"
    )
    sql("ALTER TABLE ledger_entry ALTER id SET DEFAULT nextval('parts.entry_id')")
    sql("CREATE TABLE low PARTITION OF ledger_entry FOR VALUES FROM (MINVALUE) TO (1000)")
    sql("CREATE TABLE high PARTITION OF ledger_entry FOR VALUES FROM (1000) TO (2000)")
    with connection.cursor() as cursor:
        for trigger in fence_triggers(Entry.lease_resource):
            cursor.execute(trigger.compile(Entry).install_sql)
    yield
    sql("DROP SCHEMA parts CASCADE")
    connection.close()


def missing_triggers() -> list[CheckMessage]:
    return [message for message in databases.fences(["default"]) if message.id == "leases.E023"]


@pytest.mark.parametrize("name", WRITES)
def test_write_through_the_parent_is_accepted_under_the_lease_only(name: str, account: Account, resource: str) -> None:
    entry = existing(account)
    with pytest.raises(NotHeld):
        WRITES[name](account, entry)
    with hold(resource):
        WRITES[name](account, entry)


@pytest.mark.parametrize("name", RAW)
def test_raw_sql_through_the_parent_is_accepted_under_the_lease_only(
    name: str, account: Account, resource: str
) -> None:
    entry = existing(account)
    with pytest.raises((DatabaseError, psycopg.Error), match="not presented: account:"):
        RAW[name](account, entry)
    with hold(resource) as lease, lease.transaction():
        RAW[name](account, entry)


def test_row_that_moves_to_another_partition_and_resource_needs_both_leases(account: Account, resource: str) -> None:
    entry = existing(account)
    other = Account.objects.create(name="Bob")
    move = "UPDATE ledger_entry SET id = id + 1000, account_id = %s"
    for held in (resource, f"account:{other.pk}"):
        with hold(held) as lease, pytest.raises(NotHeld), lease.transaction():
            sql(move, other.pk)
    with hold(resource) as first, hold(f"account:{other.pk}") as second, first.transaction(), second.transaction():
        sql(move, other.pk)
    assert Entry.objects.get().pk == entry.pk + 1000


def test_partition_that_is_named_directly_needs_the_triggers_that_the_check_says(
    account: Account, resource: str
) -> None:
    """PostgreSQL clones row triggers to partitions, not those of statements; so the check gives what is missing."""
    existing(account)
    sql("UPDATE low SET memo = 'let through'")
    found = missing_triggers()
    assert [message.msg.partition(",")[0] for message in found] == ["high", "low"]
    for message in found:
        sql(str(message.hint).removeprefix("Execute: "))
    assert missing_triggers() == []
    for statement in ("UPDATE low SET memo = 'raw'", "DELETE FROM low", "DELETE FROM ONLY low"):
        with pytest.raises(DatabaseError, match="not presented: account:"):
            sql(statement)
    with hold(resource) as lease, lease.transaction():
        sql("UPDATE low SET memo = 'under the lease'")
    assert Entry.objects.get().memo == "under the lease"


def test_partition_that_is_attached_later_is_fenced_through_the_parent_and_named_by_the_check(
    account: Account, resource: str
) -> None:
    for message in missing_triggers():
        sql(str(message.hint).removeprefix("Execute: "))
    sql("CREATE TABLE archive (LIKE ledger_entry INCLUDING ALL)")
    sql("INSERT INTO archive (id, token, amount_minor, memo, account_id) VALUES (2000, 1, 5, 'old', %s)", account.pk)
    sql("ALTER TABLE ledger_entry ATTACH PARTITION archive FOR VALUES FROM (2000) TO (3000)")
    with pytest.raises(DatabaseError, match="not presented: account:"):
        sql("UPDATE ledger_entry SET memo = 'raw' WHERE id = 2000")
    [message] = missing_triggers()
    assert message.msg.startswith("archive, a partition of ledger_entry, lacks")
    sql(str(message.hint).removeprefix("Execute: "))
    with pytest.raises(DatabaseError, match="not presented: account:"):
        sql("UPDATE archive SET memo = 'raw'")
    with hold(resource):
        Entry.objects.filter(pk=2000).update(memo="under the lease")


def test_partition_with_triggers_of_its_own_can_be_detached_and_stays_fenced(account: Account) -> None:
    existing(account)
    for message in missing_triggers():
        sql(str(message.hint).removeprefix("Execute: "))
    sql("ALTER TABLE ledger_entry DETACH PARTITION low")
    with pytest.raises(DatabaseError, match="not presented: account:"):
        sql("DELETE FROM low")
