"""The broker's middleware at work, in real workers."""

import logging
from collections.abc import Iterator
from datetime import timedelta

import dramatiq
import pytest
from django.conf import settings
from django.db import connection
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import AgeLimit, CurrentMessage, ShutdownNotifications, TimeLimit

from leases.conf import conf
from project.broker import make_broker
from project.broker_middleware import DatabaseConnections
from project.logs import JobFilter
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
    limits = [m.time_limit for m in broker.middleware if isinstance(m, TimeLimit)]
    assert len(limits) == 1
    assert timedelta(milliseconds=limits[0]) > conf.MAX_HOLD


def test_messages_are_never_dropped_for_their_age_nor_jobs_broken_off_by_a_shutdown(broker: dramatiq.Broker) -> None:
    assert any(isinstance(middleware, CurrentMessage) for middleware in broker.middleware)
    assert not any(isinstance(middleware, AgeLimit | ShutdownNotifications) for middleware in broker.middleware)


def test_actors_of_the_apps_are_declared_on_the_projects_broker() -> None:
    broker = dramatiq.get_broker()
    assert isinstance(broker, RedisBroker)
    assert any(isinstance(middleware, DatabaseConnections) for middleware in broker.middleware)
