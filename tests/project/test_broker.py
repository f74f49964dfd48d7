"""The broker's middleware at work, in real workers."""

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import dramatiq
import pytest
from django.conf import settings
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import AgeLimit, CurrentMessage, ShutdownNotifications, TimeLimit

from leases import once
from leases.conf import conf
from leases.jobs.brokers.middleware import DatabaseConnections
from leases.models import DeadLetter, Receipt
from project.broker import make_broker
from project.logs import JobFilter
from tests.jobs.models import Effect
from tests.waiting import wait_until

# A worker's watcher of leases reads the database.
pytestmark = pytest.mark.django_db(transaction=True)

LOGGER = logging.getLogger("tests.broker")


class Lines(logging.Handler):
    """Keeps records as they look when a handler of the project writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.addFilter(JobFilter())
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def one(self, message: str) -> logging.LogRecord | None:
        return next((record for record in self.records if record.getMessage() == message), None)


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    yield handler
    LOGGER.removeHandler(handler)


@pytest.fixture
def broker() -> Iterator[dramatiq.Broker]:
    """The project's broker, apart from the one the actors of the apps are declared on."""
    made = make_broker(settings.REDIS_URL)
    made.flush_all()
    yield made
    made.close()


@pytest.fixture
def worker(broker: dramatiq.Broker) -> Iterator[dramatiq.Worker]:
    started = dramatiq.Worker(broker, worker_threads=1, worker_timeout=100)
    started.start()
    yield started
    started.stop()


def test_log_line_of_a_job_carries_message_id_and_run(
    broker: dramatiq.Broker, worker: dramatiq.Worker, lines: Lines
) -> None:
    @dramatiq.actor(broker=broker, queue_name="test_logs")
    def speak(what: str) -> None:
        LOGGER.info(what)

    with_run = speak.send_with_options(args=("with run",), run=7)
    without = speak.send("without run")
    first = wait_until(lambda: lines.one("with run"))
    second = wait_until(lambda: lines.one("without run"))
    assert (vars(first)["message_id"], vars(first)["run"]) == (with_run.message_id, 7)
    assert (vars(second)["message_id"], vars(second)["run"]) == (without.message_id, None)
    LOGGER.info("outside")
    assert vars(wait_until(lambda: lines.one("outside")))["message_id"] is None


def test_connection_that_the_server_closed_does_not_fail_the_next_message(
    broker: dramatiq.Broker, worker: dramatiq.Worker, lines: Lines
) -> None:
    # outbox C74, D21
    @dramatiq.actor(broker=broker, queue_name="test_connections", max_retries=0)
    def backend() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            LOGGER.info("backend", extra={"backend": cursor.fetchone()[0]})

    def backends() -> list[int]:
        return [vars(record)["backend"] for record in lines.records]

    backend.send()
    wait_until(lambda: len(backends()) == 1)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [backends()[0]])
    backend.send()
    wait_until(lambda: len(backends()) == 2)
    assert backends()[0] != backends()[1]


def test_no_job_is_interrupted_while_its_lease_may_last(broker: dramatiq.Broker) -> None:
    # outbox B57, D10
    limits = [m.time_limit for m in broker.middleware if isinstance(m, TimeLimit)]
    assert len(limits) == 1
    assert timedelta(milliseconds=limits[0]) > conf.MAX_HOLD


def test_job_runs_once_more_than_it_may_be_retried_and_not_again_after_an_error_it_throws(
    broker: dramatiq.Broker, worker: dramatiq.Worker
) -> None:
    # outbox D9, E7
    runs: list[str] = []

    @dramatiq.actor(broker=broker, queue_name="test_retries", max_retries=3, min_backoff=1, max_backoff=2)
    def fail() -> None:
        runs.append("fail")
        raise RuntimeError("as told")

    @dramatiq.actor(broker=broker, queue_name="test_retries", max_retries=3, throws=ZeroDivisionError)
    def throw() -> None:
        runs.append("throw")
        raise ZeroDivisionError

    fail.send()
    throw.send()
    wait_until(lambda: DeadLetter.objects.count() == 2, 30)
    assert (runs.count("fail"), runs.count("throw")) == (4, 1)


def test_job_that_retry_when_runs_more_often_than_max_retries_takes_effect_once(
    broker: dramatiq.Broker, worker: dramatiq.Worker
) -> None:
    # outbox C71
    """Dramatiq lets `retry_when` replace `max_retries`: one more failure than that ends nothing."""
    runs: list[int] = []

    @dramatiq.actor(
        broker=broker,
        queue_name="test_retries",
        max_retries=1,
        retry_when=lambda retries, error: retries < 4,
        min_backoff=1,
        max_backoff=2,
    )
    @once("often:{name}", name="often")
    def often(name: str) -> None:
        Effect.objects.create(name=name, pid=0)
        runs.append(1)
        if len(runs) < 4:
            raise RuntimeError("as told")

    often.send("ada")
    wait_until(lambda: Receipt.objects.filter(key="often:ada").exists(), 30)
    assert (len(runs), Effect.objects.count()) == (4, 1)
    assert not DeadLetter.objects.exists()


def test_enqueueing_in_a_transaction_writes_no_row_that_could_roll_back_with_it(broker: dramatiq.Broker) -> None:
    # outbox D23
    """The message is public at once: a row about it in the caller's transaction would come late, or never."""

    @dramatiq.actor(broker=broker, queue_name="test_enqueueing")
    def job() -> None: ...

    with transaction.atomic(), CaptureQueriesContext(connection) as sent:
        job.send()
        job.send_with_options(delay=1000)
    assert [query["sql"] for query in sent if query["sql"] not in ("BEGIN", "COMMIT")] == []


def test_dead_workers_are_looked_for_every_few_seconds_also_by_one_idle_worker(broker: Any) -> None:
    # outbox D3, E5
    looks_per_second = 1.3 * broker.maintenance_chance / 1_000_000
    assert 1 / looks_per_second < 10


def test_messages_are_never_dropped_for_their_age_nor_jobs_broken_off_by_a_shutdown(broker: dramatiq.Broker) -> None:
    # outbox D11, D15
    assert any(isinstance(middleware, CurrentMessage) for middleware in broker.middleware)
    assert not any(isinstance(middleware, AgeLimit | ShutdownNotifications) for middleware in broker.middleware)


def test_actors_of_the_apps_are_declared_on_the_projects_broker() -> None:
    broker = dramatiq.get_broker()
    assert isinstance(broker, RedisBroker)
    assert any(isinstance(middleware, DatabaseConnections) for middleware in broker.middleware)
