"""A job that lost its lease is stopped: in Python code, in SQL, and not while it commits or is shielded."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django_redis import get_redis_connection
from dramatiq.middleware.threading import raise_thread_exception

from leases import hold, holding, lent
from leases.errands import errands
from leases.errors import LeaseLost
from leases.lease import Lease
from leases.models import Incident, LeaseRecord
from leases.presenting import presenting
from leases.stopping import Job
from tests.leases.conftest import steal
from tests.leases.threads import in_thread
from tests.ledger.models import Account
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
SHORT = timedelta(milliseconds=600)


class Interrupted(BaseException):
    """What the tests raise in a job's thread."""


def interrupt_this_thread() -> Any:
    thread_id = threading.get_ident()
    return lambda: raise_thread_exception(thread_id, Interrupted)


def execute_and_be_robbed(resource: str, query: str) -> None:
    """Execute `query`, and have `resource` stolen once it runs; a loss before that would have nothing to cancel."""

    def is_running() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND state = 'active' AND query ~ '^SELECT (pg_sleep|count)'"
            )
            return cursor.fetchone() is not None

    def thief() -> None:
        wait_until(is_running)
        steal(resource)

    with in_thread(thief), connection.cursor() as cursor:
        cursor.execute(query)


def test_sleeping_query_is_cancelled_when_the_lease_is_lost() -> None:  # locks L54
    # locks L35
    with pytest.raises(LeaseLost) as lost, hold("customer:1", ttl=SHORT):
        execute_and_be_robbed("customer:1", "SELECT pg_sleep(30)")
    assert isinstance(lost.value.__cause__ or lost.value.__context__, OperationalError)
    with connection.cursor() as cursor:  # the connection is as good as before
        cursor.execute("SELECT 1")


def test_computing_query_is_cancelled_when_the_lease_is_lost() -> None:
    with pytest.raises(LeaseLost), hold("customer:1", ttl=SHORT):
        execute_and_be_robbed(
            "customer:1", "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b"
        )


def test_holder_and_the_thread_it_lent_its_lease_to_are_both_cancelled() -> None:
    def under_the_same_lease() -> None:
        with pytest.raises(LeaseLost), lent(lease), connection.cursor() as cursor:
            sleeping.set()
            cursor.execute("SELECT pg_sleep(30)")

    def over_at_once() -> None:
        with lent(lease):
            pass

    sleeping = threading.Event()
    with pytest.raises(LeaseLost), hold("customer:1", ttl=SHORT) as lease:
        with in_thread(over_at_once):
            pass
        with in_thread(under_the_same_lease):
            assert sleeping.wait(10)
            steal("customer:1")
            with pytest.raises(LeaseLost), connection.cursor() as cursor:
                cursor.execute("SELECT pg_sleep(30)")


def test_python_loop_is_interrupted_when_the_lease_is_lost() -> None:
    # locks L56
    with (
        pytest.raises(Interrupted),
        hold("customer:1", ttl=SHORT) as lease,
        lease.interruptible(interrupt_this_thread()),
    ):
        steal("customer:1")
        while True:
            pass


def test_shielded_lines_are_not_interrupted_and_the_loss_is_raised_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(job: Job, lease: Lease) -> None:
        stop_job(job, lease)
        stopped.set()

    stop_job, stopped = Job.stop, threading.Event()
    monkeypatch.setattr(Job, "stop", stop)
    finished, interrupt = False, interrupt_this_thread()
    with (
        pytest.raises(LeaseLost),
        hold("customer:1", ttl=SHORT) as lease,
        lease.interruptible(interrupt),
        lease.shielded(),
    ):
        steal("customer:1")
        assert stopped.wait(10)
        for _ in range(100_000):
            pass
        finished = True
    assert finished


def test_interrupt_that_landed_in_the_end_of_a_block_leaves_nothing_of_it_to_the_next_lease() -> None:
    """Before the block's own code ran, which then waits for the exception to be forgotten."""
    calls: list[str] = []
    with hold("customer:1") as lease:
        block = lease.interruptible(lambda: calls.append("of the first lease"))
        block.__enter__()
        shield = lease.shielded()
        shield.__enter__()
    with (
        pytest.raises(LeaseLost),
        hold("customer:1") as lease,
        lease.interruptible(lambda: calls.append("of the second")),
    ):
        assert not lease.job.is_shielded
        lease.lose(Incident.Detector.RENEWAL_REFUSED)
        wait_until(lambda: "of the second" in calls)
    assert calls == ["of the second"]
    block.__exit__(None, None, None)
    with suppress(LeaseLost):
        shield.__exit__(None, None, None)
    with hold("customer:1") as lease, lease.shielded():
        assert lease.job.is_shielded


def test_stop_of_a_job_never_hits_the_next_job_on_its_connection() -> None:
    for _ in range(5):
        with pytest.raises(LeaseLost), hold("customer:1", ttl=SHORT) as lease:
            steal("customer:1")
            wait_until(lambda: not lease.is_held)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(0.1)")
        Account.objects.all().delete()
        get_redis_connection("leases").flushdb()


@pytest.fixture
def slow_commits(account: Account) -> Iterator[None]:
    """A deferred trigger makes the commit of a new account last, so that the loss falls into it."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE OR REPLACE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_sleep(1); RETURN NULL; END $$"
        )
        cursor.execute(
            "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON ledger_account DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION slow()"
        )
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION slow CASCADE")


def test_commit_is_not_cancelled_when_the_lease_is_lost_meanwhile(slow_commits: None, resource: str) -> None:
    with pytest.raises(LeaseLost), hold(resource, ttl=timedelta(seconds=9)) as lease:
        timer = threading.Timer(0.5, lambda: lease.lose(Incident.Detector.RENEWAL_REFUSED))
        timer.start()
        with lease.transaction():
            Account.objects.create(name="committed")
        timer.join()
    assert Account.objects.filter(name="committed").exists()


def test_commit_of_a_transaction_that_the_caller_opened_is_not_cancelled(slow_commits: None, resource: str) -> None:
    with pytest.raises(LeaseLost), hold(resource, ttl=timedelta(seconds=9)) as lease:
        timer = threading.Timer(0.5, lambda: lease.lose(Incident.Detector.RENEWAL_REFUSED))
        timer.start()
        with transaction.atomic():
            Account.objects.create(name="committed")
        timer.join()
    assert Account.objects.filter(name="committed").exists()


def test_write_that_commits_by_itself_is_not_cancelled(account: Account, resource: str) -> None:
    """It may be waiting for a standby, and would be reported done too early."""
    with pytest.raises(LeaseLost), hold(resource, ttl=timedelta(seconds=9)) as lease, connection.cursor() as cursor:
        timer = threading.Timer(0.5, lambda: lease.lose(Incident.Detector.RENEWAL_REFUSED))
        timer.start()
        cursor.execute("UPDATE ledger_account SET name = 'committed' WHERE pg_sleep(1) IS NOT NULL")
        timer.join()
    assert Account.objects.get(pk=account.pk).name == "committed"


def test_statement_after_the_loss_is_not_begun_and_those_of_a_handler_are() -> None:
    with pytest.raises(LeaseLost), hold("customer:1") as lease:
        lease.lose(Incident.Detector.RENEWAL_REFUSED)
        with pytest.raises(LeaseLost):
            Account.objects.create(name="not begun")
        Account.objects.create(name="written by a handler")
    assert list(Account.objects.values_list("name", flat=True)) == ["written by a handler"]


def test_savepoint_is_rolled_back_although_the_lease_is_lost() -> None:
    with pytest.raises(LeaseLost), hold("customer:1") as lease, transaction.atomic():
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            Account.objects.create(name="undone")
            lease.lose(Incident.Detector.RENEWAL_REFUSED)
            _ = 1 / 0
        with lease.job.shielded():
            left = Account.objects.count()
    assert left == 0


def test_shielded_lines_begin_their_statements_although_the_lease_is_lost() -> None:
    with pytest.raises(LeaseLost), hold("customer:1") as lease, lease.shielded():
        lease.lose(Incident.Detector.RENEWAL_REFUSED)
        Account.objects.create(name="shielded")
    assert Account.objects.exists()


def test_cancellation_that_overtakes_its_statement_is_repeated() -> None:
    """The statement is on its way when the lease is lost, and reaches the server after its cancellation."""

    def late(execute: Any, *args: Any) -> Any:
        steal_in_another_thread()
        wait_until(lambda: work.statement is not None and work.statement.is_cancelled)
        with lease.job._guard:  # the first cancellation is over
            return_late.append(True)
        return execute(*args)

    def steal_in_another_thread() -> None:
        with in_thread(lambda: steal("customer:1")):
            pass

    return_late: list[bool] = []
    with pytest.raises(LeaseLost), hold("customer:1", ttl=SHORT) as lease:
        work = lease.job._running[lease][threading.get_ident()]
        with connection.execute_wrapper(late), connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(30)")
    assert return_late == [True]


def test_inner_lease_ends_well_although_the_outer_one_is_lost() -> None:
    with pytest.raises(LeaseLost, match="customer:1"), hold("customer:1") as outer, hold("customer:2"):
        outer.lose(Incident.Detector.RENEWAL_REFUSED)
    assert LeaseRecord.objects.get(resource="customer:2").end == LeaseRecord.End.RELEASED


def test_forked_child_executes_sql_that_its_parents_lease_has_no_say_in() -> None:
    with hold("customer:1"):
        pid = os.fork()
        if not pid:
            os._exit(len(connection.execute_wrappers))
        _, status = os.waitpid(pid, 0)
        assert len(connection.execute_wrappers) == 1
    assert os.waitstatus_to_exitcode(status) == 0
    assert not connection.execute_wrappers


def test_commit_under_a_lent_lease_is_not_cancelled_when_the_threads_own_is_lost(slow_commits: None) -> None:
    """The two belong to the jobs of two threads, and the transaction presents both."""

    def commit_under_both() -> None:
        with pytest.raises(LeaseLost), hold("customer:2", ttl=timedelta(seconds=9)) as own, lent(lease):
            timer = threading.Timer(0.5, lambda: own.lose(Incident.Detector.RENEWAL_REFUSED))
            timer.start()
            with presenting([lease, own], "default"):
                Account.objects.create(name="committed")
            timer.join()

    with hold("customer:1") as lease, in_thread(commit_under_both):
        pass
    assert Account.objects.filter(name="committed").exists()


def test_reports_that_the_database_is_slow_to_take_hold_up_no_stop() -> None:
    def slow() -> None:
        go_on.wait(20)

    go_on = threading.Event()
    for _ in range(8):
        errands.run(slow, failed="It was not slow.")
    try:
        with pytest.raises(LeaseLost), hold("customer:1", ttl=SHORT):
            execute_and_be_robbed("customer:1", "SELECT pg_sleep(30)")
        assert not go_on.is_set()
    finally:
        go_on.set()


def test_interrupt_does_not_land_in_the_logging_of_the_loss() -> None:
    """A job that sees its own loss logs it; cut in two there, it would leave a lock of logging held for ever."""

    class WhileLogging(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if getattr(record, "event", "") == "lease.lost":
                landed.append(interrupted.wait(1))

    landed: list[bool] = []
    interrupted = threading.Event()
    handler = WhileLogging()
    logging.getLogger("leases").addHandler(handler)
    try:
        with pytest.raises(LeaseLost), hold("customer:1") as lease, lease.interruptible(interrupted.set):
            lease.lose(Incident.Detector.DEADLINE_PASSED)
            assert interrupted.wait(5)
    finally:
        logging.getLogger("leases").removeHandler(handler)
    assert landed == [False]


def test_fork_while_the_job_is_being_stopped_leaves_the_child_able_to_work() -> None:
    """The thread that stops it holds the guard, and is not in the child to give it up."""
    job = holding._thread.job
    with job._guard:
        pid = os.fork()
        if not pid:
            os._exit(0 if job._guard.acquire(timeout=5) else 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
