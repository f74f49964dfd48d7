"""The caller's database connection: hold() neither closes it nor overlooks a transaction that is open on it."""

from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from leases import fence, hold
from leases.breaking import break_lease
from leases.errors import InsideTransaction
from leases.jobs import receipt_sql
from leases.models import LeaseRecord
from tests.leases.conftest import steal
from tests.ledger.models import Account
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def execute(sql: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall() if cursor.description else None


@pytest.fixture
def beyond_its_age() -> None:
    """As with CONN_MAX_AGE = 0, which is Django's default."""
    connection.ensure_connection()
    connection.close_at = 0.0


def test_connection_beyond_its_age_keeps_its_settings_and_cursors_over_hold(beyond_its_age: None) -> None:
    Account.objects.bulk_create(Account(name=str(number)) for number in range(200))
    rows = Account.objects.iterator(chunk_size=50)
    next(rows)
    execute("SET application_name = 'mine'")
    with hold("customer:1"):
        assert execute("SHOW application_name") == [("mine",)]
        execute("CREATE TEMPORARY TABLE mine AS SELECT 1")
    assert execute("SELECT * FROM mine") == [(1,)]
    assert len(list(rows)) == 199


def test_connection_on_which_a_statement_failed_stays_if_it_lives(beyond_its_age: None) -> None:
    execute("SET application_name = 'mine'")
    with pytest.raises(DatabaseError):
        execute("SELECT 1 / 0")
    with hold("customer:1"):
        assert execute("SHOW application_name") == [("mine",)]


def test_transaction_that_was_begun_in_sql_refuses_a_lease() -> None:
    execute("BEGIN")
    try:
        with pytest.raises(InsideTransaction), hold("customer:1"):
            pass
    finally:
        execute("ROLLBACK")
    with hold("customer:1"):
        pass


@pytest.mark.parametrize("begun_in_sql", [True, False])
def test_transaction_that_ends_after_the_lease_is_committed_whole(begun_in_sql: bool) -> None:
    try:
        with hold("customer:1"):
            connection.close_at = 0.0
            if begun_in_sql:
                execute("BEGIN")
            else:
                connection.set_autocommit(False)
            Account.objects.create(name="committed")
        execute("COMMIT")
    finally:
        connection.set_autocommit(True)
    assert Account.objects.filter(name="committed").exists()
    wait_until(lambda: LeaseRecord.objects.get().end == LeaseRecord.End.RELEASED)


@pytest.mark.parametrize(
    ("asked", "kept"), [("off", "on"), ("local", "on"), ("remote_write", "on"), ("remote_apply", "remote_apply")]
)
@pytest.mark.parametrize("by", ["present", "register", "receipt", "start", "finish"])
def test_commit_of_a_token_or_a_receipt_waits_no_less_than_its_transaction_asked_for(
    asked: str, kept: str, by: str
) -> None:
    with hold("customer:1") as lease, transaction.atomic():
        execute(f"SET LOCAL synchronous_commit = {asked}")
        if by == "present":
            fence.present("customer:1", lease.token, ttl_ms=60_000, using="default")
        elif by == "register":
            execute("SELECT leases_register('customer:2', 1, '', 1, '', 1, '', '', '1s')")
        elif by in ("start", "finish"):
            receipt_sql.start("a", "b", token=1, message_id="", retention=None, may_repeat=False, using="default")
            if by == "finish":
                execute(f"SET LOCAL synchronous_commit = {asked}")
                receipt_sql.finish("a", token=1, state="done", outcome=None, reason="", using="default")
        else:
            execute("SELECT leases_insert_receipt('a', 'b', 'c', '1s', '1s', '1 day')")
        assert execute("SHOW synchronous_commit") == [(kept,)]


@pytest.mark.parametrize(("asked", "kept"), [("off", "on"), ("remote_apply", "remote_apply")])
def test_commit_of_a_break_waits_no_less_than_its_session_asked_for(asked: str, kept: str) -> None:
    seen = []

    def look_after_each(execute: Any, sql: Any, *rest: Any) -> Any:
        result = execute(sql, *rest)
        if connection.in_atomic_block:
            seen.append(connection.connection.execute("SHOW synchronous_commit").fetchone())
        return result

    steal("customer:1")
    execute(f"SET synchronous_commit = {asked}")
    try:
        with connection.execute_wrapper(look_after_each):
            break_lease("customer:1", reason="it hangs", by="ada")
    finally:
        execute("RESET synchronous_commit")
    assert seen[-1] == (kept,)
