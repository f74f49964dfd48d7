"""A thread that lost its lease is told once, by LeaseLost or StaleToken, and what handles that may use the database."""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from leases import Lease, hold, lent
from leases.errands import stops
from leases.errors import LeaseLost, StaleToken
from leases.models import Incident
from tests.leases.conftest import steal
from tests.leases.threads import in_thread
from tests.ledger.models import Account, Entry
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def lose(lease: Lease) -> None:
    lease.lose(Incident.Detector.RENEWAL_REFUSED)


def check(lease: Lease, account: Account) -> None:
    lose(lease)
    lease.check()


def write_a_fenced_row(lease: Lease, account: Account) -> None:
    lose(lease)
    Entry.objects.create(account=account)


def write_under_a_stale_token(lease: Lease, account: Account) -> None:
    steal(lease.resource)
    Entry.objects.create(account=account)


def check_after_the_deadline(lease: Lease, account: Account) -> None:
    lease.deadline = 0.0
    lease.check()


def execute_after_the_deadline(lease: Lease, account: Account) -> None:
    lease.deadline = 0.0
    Account.objects.count()


def execute(lease: Lease, account: Account) -> None:
    lose(lease)
    Account.objects.count()


@contextmanager
def stops_come_late() -> Iterator[Callable[[], None]]:
    """Hold up whatever stops jobs until the function given is called, which waits for it to be done."""

    def go_on() -> None:
        late.set()
        stops.finish()

    def wait() -> None:
        late.wait(20)

    late = threading.Event()
    for _ in range(8):
        stops.run(wait, failed="Nobody waited.")
    try:
        yield go_on
    finally:
        go_on()


@pytest.mark.parametrize(
    "how",
    [
        check,
        write_a_fenced_row,
        write_under_a_stale_token,
        check_after_the_deadline,
        execute_after_the_deadline,
        execute,
    ],
)
def test_stop_that_comes_late_does_not_cancel_what_handles_the_loss(
    how: Callable[[Lease, Account], None], account: Account, resource: str
) -> None:
    def keep_it_waiting() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(7)")
            locked.set()
            wait_until(handler_waits)
            stop_now()

    def handler_waits() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'"
            )
            return cursor.fetchone() is not None

    locked = threading.Event()
    with stops_come_late() as stop_now, in_thread(keep_it_waiting), pytest.raises(LeaseLost), hold(resource) as lease:
        assert locked.wait(10)
        with pytest.raises((LeaseLost, StaleToken)):
            how(lease, account)
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(7)")
            Account.objects.create(name="written by a handler")
    assert Account.objects.filter(name="written by a handler").exists()


@pytest.mark.parametrize("in_transaction", [True, False])
def test_statement_that_ended_before_its_cancellation_came_leaves_it_to_the_next_one_to_tell(
    in_transaction: bool, resource: str
) -> None:
    def lost_at_its_end(execute: Any, *args: Any) -> Any:
        result = execute(*args)
        lose(lease)
        stops.finish()
        return result

    begun: list[bool] = []
    with pytest.raises(LeaseLost), hold(resource) as lease:
        with pytest.raises(LeaseLost):
            if in_transaction:
                with transaction.atomic():
                    execute_under(lost_at_its_end, begun)
            else:
                execute_under(lost_at_its_end, begun)
        Account.objects.create(name="written by a handler")
    assert begun == [True]


def execute_under(wrapper: Any, begun: list[bool]) -> None:
    with connection.execute_wrapper(wrapper), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    begun.append(True)
    with connection.cursor() as cursor:
        cursor.execute("SELECT 2")
    begun.append(False)


def test_cancelled_statement_raises_lease_lost_where_it_stands(resource: str) -> None:
    def lost_on_its_way(execute: Any, *args: Any) -> Any:
        lose(lease)
        return execute(*args)

    with pytest.raises(LeaseLost), hold(resource, ttl=timedelta(seconds=9)) as lease:
        with pytest.raises(LeaseLost) as lost, connection.execute_wrapper(lost_on_its_way):
            sleep_in_sql()
        assert isinstance(lost.value.__context__, OperationalError)
        Account.objects.create(name="written by a handler")


def test_statement_of_a_handler_that_meets_its_own_time_limit_is_not_called_a_loss(resource: str) -> None:
    with pytest.raises(LeaseLost), hold(resource) as lease:
        check_fails(lease)
        with pytest.raises(OperationalError, match="statement timeout"), transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL statement_timeout = '50ms'")
            sleep_in_sql()


def sleep_in_sql() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(30)")


def check_fails(lease: Lease) -> None:
    lose(lease)
    with pytest.raises(LeaseLost):
        lease.check()


def test_thread_that_was_lent_the_lease_is_told_although_its_holder_knows_already(resource: str) -> None:
    def borrower() -> None:
        with pytest.raises(LeaseLost), lent(lease):
            borrowed.set()
            assert known.wait(10)
            Account.objects.count()

    borrowed, known = threading.Event(), threading.Event()
    with pytest.raises(LeaseLost), hold(resource) as lease, in_thread(borrower):
        assert borrowed.wait(10)
        check_fails(lease)
        known.set()


@pytest.mark.parametrize("write", ["update", "delete"])
def test_queryset_of_a_lost_lease_says_that_it_is_lost(write: str, account: Account, resource: str) -> None:
    with pytest.raises(LeaseLost), hold(resource) as lease:
        check_fails(lease)
        rows = Entry.objects.filter(account=account)
        with pytest.raises(LeaseLost):
            rows.delete() if write == "delete" else rows.update(account=account)


def test_body_of_an_inner_hold_that_outlived_the_outer_one_is_told_at_its_end() -> None:
    def rows() -> Generator[int]:
        with hold("customer:1"):
            yield 1

    held = rows()
    next(held)
    with pytest.raises(LeaseLost), hold("customer:1"):
        held.close()
