"""What goes over the wire to PostgreSQL, and what happens when the line is dead."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connection, connections, transaction

from leases import fence, hold
from leases.breaking import break_lease
from leases.models import LeaseRecord
from tests.leases import other_database
from tests.leases.conftest import steal
from tests.leases.other_database import ALIAS
from tests.leases.proxy import Proxy, proxy_to
from tests.ledger.models import Account, Entry
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

FENCED = "INSERT INTO ledger_entry (account_id, amount_minor, memo, token) VALUES (%s, 1, '', 1)"
PLAIN = "INSERT INTO ledger_plain (account_id, amount_minor, memo, token) VALUES (%s, 1, '', 1)"


@pytest.fixture
def proxy(django_db_blocker: Any) -> Iterator[Proxy]:
    """A line to the test's database that can be cut, under the alias `other`."""
    settings = connection.settings_dict
    with (
        django_db_blocker.unblock(),
        proxy_to(int(settings["PORT"])) as proxy,
        other_database.reached_at(proxy.port, database=settings["NAME"]),
    ):
        yield proxy


def requests(trace: str) -> list[str]:
    """Return the statements of a libpq trace, each by its first words."""
    return re.findall(r'F\t\d+\tQuery\t "\s*(\w+(?: \* FROM)?(?: leases_\w+)?)', trace)


@contextmanager
def traced() -> Iterator[list[str]]:
    """Give the statements that were sent over this thread's connection within the body, once it ended."""
    sent: list[str] = []
    connection.ensure_connection()
    with tempfile.TemporaryFile() as file:
        connection.connection.pgconn.trace(file.fileno())
        try:
            yield sent
        finally:
            connection.connection.pgconn.untrace()
            file.seek(0)
            sent += requests(file.read().decode())


def test_lease_costs_one_statement_when_it_begins_and_one_when_it_ends() -> None:
    with hold("customer:1"):
        pass
    with traced() as sent, hold("customer:1"):
        pass
    assert sent == ["SELECT * FROM leases_register", "SELECT leases_release"]


def test_fenced_transaction_costs_one_statement_more_than_a_plain_one(account: Account, resource: str) -> None:
    with hold(resource) as lease:
        with traced() as plain, transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(PLAIN, [account.pk])
        with traced() as fenced, lease.transaction(), connection.cursor() as cursor:
            cursor.execute(FENCED, [account.pk])
    assert plain == ["BEGIN", "INSERT", "COMMIT"]
    assert fenced == ["BEGIN", "SELECT leases_present", "INSERT", "COMMIT"]


def test_lease_is_presented_once_in_a_transaction_however_many_writes_it_has(account: Account, resource: str) -> None:
    with hold(resource) as lease, traced() as sent, lease.transaction():
        for _ in range(2):
            Entry.objects.create(account=account)
    assert sent == ["BEGIN", "SELECT leases_present", "INSERT", "INSERT", "COMMIT"]


def test_write_after_a_commit_presents_its_lease_again(account: Account, resource: str) -> None:
    with hold(resource) as lease:
        with lease.transaction():
            transaction.on_commit(lambda: Entry.objects.create(account=account, memo="by a hook"))
        with transaction.atomic():
            for memo in ("one", "two"):
                with lease.transaction():
                    Entry.objects.create(account=account, memo=memo)
    assert Entry.objects.count() == 3


def test_what_was_rolled_back_to_a_savepoint_is_presented_again(account: Account, resource: str) -> None:
    other = Account.objects.create(name="other")
    with hold(resource) as lease, hold(f"account:{other.pk}") as second, lease.transaction():
        with pytest.raises(ZeroDivisionError), second.transaction():
            _ = 1 / 0
        Entry.objects.create(account=account)
        Entry.objects.create(account=other)
    assert Entry.objects.count() == 2


@pytest.mark.parametrize("health_checks", [True, False], ids=["checked", "unchecked"])
def test_connection_that_the_server_closed_meanwhile_is_replaced(health_checks: bool, proxy: Proxy) -> None:
    connections[ALIAS].settings_dict["CONN_HEALTH_CHECKS"] = health_checks
    assert fence.current("customer:1", using=ALIAS) is None
    terminate(connections[ALIAS].connection)
    fence.reopen_if_closed(ALIAS)
    assert fence.current("customer:1", using=ALIAS) is None


def terminate(victim: "psycopg.Connection[Any]") -> None:
    """End a connection from the server's side, and wait until the news is here."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [victim.info.backend_pid])
    wait_until(lambda: not fence._is_silent(victim))


@pytest.mark.parametrize("lost", ["requests_to_lose", "replies_to_lose"])
def test_end_is_recorded_although_the_line_to_the_database_turns_out_to_be_dead(lost: str, proxy: Proxy) -> None:
    with hold("customer:1", using=ALIAS) as lease:
        setattr(proxy, lost, 1)
    assert getattr(proxy, lost) == 0
    assert LeaseRecord.objects.get(token=lease.token).end == LeaseRecord.End.RELEASED


def test_broken_lease_is_on_disk_before_anybody_is_told() -> None:
    """A release need not be: what a crash of the server takes with it is a false alarm, not a fence."""
    seen = []

    def look(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        answer = execute(sql, params, many, context)
        if connection.in_atomic_block:
            [row] = connection.connection.execute("SELECT current_setting('synchronous_commit')").fetchall()
            seen.append(row[0])
        return answer

    steal("customer:1")
    with connection.execute_wrapper(look):
        break_lease("customer:1", reason="it hangs", by="ada")
    assert seen[-1] == "on"
