"""A worker's job that lost its lease is interrupted, goes back to the queue, and leaves its thread fit for the next."""

import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import patch
from urllib.request import urlopen

import dramatiq
import pytest
from django.db import connection, transaction

from leases import current_lease, hold, leased, live, once
from tests.leases.conftest import steal
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
SHORT = timedelta(milliseconds=600)
running = threading.Event()
done = threading.Event()
ended_by: list[str] = []
kept: list[BaseException] = []


def note_how_it_ends(work: Any) -> None:
    running.set()
    try:
        work()
    except BaseException as error:
        ended_by.append(type(error).__name__)
        kept.append(error)
        raise


def loop() -> None:
    while True:
        pass


def sleep_in_sql() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(60)")


def sleep_in_c() -> None:
    time.sleep(1.5)


@contextmanager
def silent_server() -> Iterator[int]:
    """Give the port of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def call_until_it_times_out() -> None:
    """Nothing interrupts a call that waits in recv(); the interrupt lands when its timeout ends it."""
    with silent_server() as port, urlopen(f"http://127.0.0.1:{port}/", timeout=1.5):
        pass


def call_that_the_loss_ends() -> None:
    """Without a timeout: this ends only because the socket is shut down."""
    lease = current_lease()
    assert lease
    with (
        silent_server() as port,
        socket.create_connection(("127.0.0.1", port)) as line,
        lease.interruptible(partial(line.shutdown, socket.SHUT_RDWR)),
    ):
        line.recv(1)


@once("interrupted")
def run_once() -> None: ...


class OnceInterruptible(list[Any]):
    def append(self, item: Any) -> None:
        connection.execute_wrappers = [*self, item]
        loop()


def begin_a_run() -> None:
    """The interrupt lands when the statements of a run that may take effect once are watched, outside of its block."""
    connection.execute_wrappers = OnceInterruptible(connection.execute_wrappers)
    run_once()


def commit() -> None:
    """The interrupt lands while the commit is under way, in which Django then cannot end the transaction."""

    def begin_to_commit() -> None:
        connection.connection.pgconn.send_query(b"COMMIT")
        loop()

    with patch.object(connection, "_commit", begin_to_commit), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def hold_another() -> None:
    """The interrupt lands where the block of the inner lease has not begun to end, and somebody keeps the exception."""
    inner = hold("inner")
    inner.__enter__()
    loop()


class SlowToLock(logging.Handler):
    """Long between taking its lock and the lines that are sure to give it back."""

    def acquire(self) -> None:
        super().acquire()
        over_at = time.monotonic() + 0.8
        while time.monotonic() < over_at:
            pass

    def emit(self, record: logging.LogRecord) -> None:
        pass


slow_to_lock = SlowToLock()


def write_a_log_line() -> None:
    slow_logger = logging.Logger("slow")
    slow_logger.addHandler(slow_to_lock)
    slow_logger.info("slow")
    loop()


class Interruptible(list[Any]):
    """A list that is long in appending, so that an interrupt lands right after it."""

    def append(self, item: Any) -> None:
        super().append(item)
        loop()


def begin_a_transaction() -> None:
    """The interrupt lands when the transaction is open, and Django's block around it not yet entered."""
    blocks: Any = Interruptible()
    connection.atomic_blocks = blocks
    with transaction.atomic():
        pass


def be_traced() -> None:
    pass


def call_something_traced() -> None:
    sys.settrace(lambda *event: None)
    be_traced()
    sys.settrace(None)


WORK = {
    "loop": loop,
    "pg_sleep": sleep_in_sql,
    "time.sleep": sleep_in_c,
    "http": call_until_it_times_out,
    "shutdown": call_that_the_loss_ends,
    "begin": begin_a_transaction,
    "once": begin_a_run,
    "commit": commit,
    "log": write_a_log_line,
    "inner": hold_another,
}


@dramatiq.actor(queue_name="interrupts", max_retries=0)
@leased("interrupted:{name}", ttl=SHORT)
def interrupted(name: str) -> None:
    note_how_it_ends(WORK[name])


@dramatiq.actor(queue_name="interrupts", max_retries=0)
def next_job() -> None:
    with hold("next"), connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(0.3)")
    done.set()


@pytest.fixture
def worker() -> Iterator[None]:
    running.clear()
    done.clear()
    ended_by.clear()
    kept.clear()
    broker = dramatiq.get_broker()
    broker.flush("interrupts")
    broker.flush("interrupts.DQ")
    worker = dramatiq.Worker(broker, queues={"interrupts"}, worker_threads=1, worker_timeout=100)
    worker.start()
    yield
    worker.stop(timeout=10_000)
    broker.flush("interrupts")
    broker.flush("interrupts.DQ")


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("loop", {"LeaseInterrupt"}),
        ("pg_sleep", {"LeaseLost", "LeaseInterrupt"}),  # cancelled first, and interrupted right after it
        ("time.sleep", {"LeaseInterrupt"}),
        ("http", {"LeaseInterrupt"}),
        ("shutdown", {"LeaseInterrupt"}),
        ("begin", {"LeaseInterrupt"}),
        ("once", {"LeaseInterrupt"}),
        ("commit", {"ProgrammingError"}),  # Django's
        ("log", {"LeaseInterrupt"}),
        ("inner", {"LeaseInterrupt"}),
    ],
)
def test_job_that_lost_its_lease_is_stopped_and_put_back(  # locks L54 L55 L75
    name: str, how: set[str], worker: None, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # outbox C67
    settings.LEASES_RETRY_DELAY = timedelta(hours=1)
    caplog.set_level(logging.INFO, "leases")
    interrupted.send(name)
    assert running.wait(10)
    steal(f"interrupted:{name}")
    next_job.send()
    wait_until(lambda: ended_by)
    assert len(ended_by) == 1
    assert set(ended_by) <= how
    assert done.wait(10), "the next job on the same thread did not run to its end"
    assert [getattr(record, "event", "") for record in caplog.records].count("job.put_back") == 1
    assert not live(["inner"])
    assert slow_to_lock.lock
    assert slow_to_lock.lock.acquire(timeout=5), "no other thread can write a log line any more"
    slow_to_lock.lock.release()
    traced = threading.Thread(target=call_something_traced, daemon=True)
    traced.start()
    traced.join(10)
    assert not traced.is_alive(), "what a debugger or coverage traces does not run any more"
