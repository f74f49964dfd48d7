"""Which statements of a job are watched, so that a loss cancels them, and which are left alone."""

import threading
from collections.abc import Generator
from contextlib import ExitStack
from typing import Any

import pytest
from django.db import connection

from leases import Lease, fence, hold, lent
from leases.errors import LeaseLost
from leases.models import Incident
from leases.stopping import _Statement
from tests.leases.threads import in_thread
from tests.ledger.models import Account

pytestmark = pytest.mark.django_db(transaction=True)


def lose(lease: Lease) -> None:
    lease.lose(Incident.Detector.RENEWAL_REFUSED)


@pytest.mark.parametrize(
    ("sql", "commits"),
    [
        ("SELECT 1", False),
        ("(SELECT 1) UNION (SELECT 2)", False),  # as Django begins a union()
        ("WITH a AS (SELECT 1) TABLE a", False),
        ("WITH a AS (DELETE FROM ledger_entry RETURNING *) SELECT * FROM a", True),
        ("SELECT 1 INTO ledger_copy", True),
        ("VACUUM", True),
        (fence._REGISTER, True),
        (fence._RELEASE, True),
    ],
)
def test_statement_that_commits_by_itself_is_told_from_one_that_reads(sql: str, commits: bool) -> None:
    assert _Statement(sql, in_transaction=False).commits() is commits
    assert not _Statement(sql, in_transaction=True).commits()


def test_statement_is_cancelled_although_a_wrapper_executed_one_of_its_own_before_it() -> None:
    def explain(execute: Any, sql: str, *args: Any) -> Any:
        if "pg_sleep" in sql:
            Account.objects.count()
            lose(lease)
        return execute(sql, *args)

    with pytest.raises(LeaseLost), hold("customer:1") as lease:
        with pytest.raises(LeaseLost), connection.execute_wrapper(explain), connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(30)")
        Account.objects.create(name="written by a handler")


def test_wrapper_that_ends_out_of_turn_does_not_mask_the_error_of_the_body() -> None:
    """Django takes away the latest wrapper, whosever it is."""

    def held() -> Generator[None]:
        with hold("customer:1"):
            yield

    def nothing(execute: Any, *args: Any) -> Any:
        return execute(*args)

    body = held()
    with ExitStack() as stack:
        stack.enter_context(connection.execute_wrapper(nothing))
        next(body)
    try:
        with pytest.raises(ZeroDivisionError):
            body.throw(ZeroDivisionError())
    finally:
        connection.execute_wrappers.clear()


def test_shield_of_one_thread_does_not_let_another_go_on() -> None:
    def borrower() -> None:
        with pytest.raises(LeaseLost), lent(lease):
            borrowed.set()
            assert lost.wait(10)
            Account.objects.create(name="not begun")

    def interrupt_of_another() -> None:
        with pytest.raises(LeaseLost), lent(lease), lease.interruptible(interrupted.set):
            registered.set()
            assert lost.wait(10)
            assert interrupted.wait(10)
            lease.check()

    borrowed, registered, lost, interrupted = (threading.Event() for _ in range(4))
    with (
        pytest.raises(LeaseLost),
        hold("customer:1") as lease,
        in_thread(borrower),
        in_thread(interrupt_of_another),
        lease.shielded(),
    ):
        assert borrowed.wait(10)
        assert registered.wait(10)
        lose(lease)
        assert interrupted.wait(10)
        lost.set()
    assert not Account.objects.exists()
