"""What the tests of jobs share: an empty Redis, workers, and a gate that keeps jobs from going on."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from django_redis import get_redis_connection
from dramatiq import Worker
from dramatiq.brokers.stub import StubBroker
from dramatiq.common import dq_name, xq_name
from dramatiq.middleware import CurrentMessage

from leases.jobs import workload
from leases.jobs.brokers.middleware import DatabaseConnections
from leases.jobs.workload import QueueState
from project.broker import make_broker
from tests.jobs.actors import QUEUE
from tests.servers.needs import RABBITMQ_URL
from tests.servers.processes import Processes, RunningProcess
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def redis() -> Iterator[Any]:
    client = get_redis_connection("leases")
    client.flushdb()
    yield client
    client.flushdb()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file: while it exists, jobs that look for it wait."""
    return tmp_path / "gate"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where jobs take effect that is outside the database, a line each."""
    path = tmp_path / "effects"
    path.touch()
    return path


class Jobs:
    """Sends jobs through one broker, and starts workers on it."""

    def __init__(self, url: str, processes: Processes, env: dict[str, str]) -> None:
        self.url = url
        self.is_redis = url.startswith("redis")
        self._before = dramatiq.get_broker()
        self.broker: Any = self._before if self.is_redis else make_broker(url)
        self.broker.declare_queue(QUEUE)
        if not self.is_redis:
            for actor in self._before.actors.values():
                if actor.queue_name == QUEUE:  # the others' queues would be left on the server
                    self.broker.declare_actor(actor)
            dramatiq.set_broker(self.broker)  # for what this process enqueues by itself, as a replay does
        self._processes = processes
        # No job of the tests runs for long, so it does not matter that the server has its default.
        self.env = {**env, "BROKER_URL": url, "BROKER_CONSUMER_TIMEOUT_SECONDS": "4200"}

    def start(self, number: int = 2, threads: int = 2, shutdown_timeout: int = 30, **env: str) -> RunningProcess:
        """Start `rundramatiq` on the queue of the test actors."""
        arguments = ["rundramatiq", "--processes", number, "--threads", threads, "--queues", QUEUE]
        arguments += ["--shutdown-timeout", shutdown_timeout]
        return self._processes.start(*arguments, env={**self.env, **env})

    def send(self, actor: "dramatiq.Actor[..., Any]", *args: Any, **kwargs: Any) -> None:
        self.broker.enqueue(actor.message(*args, **kwargs))

    def state(self) -> QueueState:
        """Return what `manage.py workload` says about the queue."""
        return workload.measure(broker=self.broker, queues=[QUEUE])[0]

    def lose(self) -> None:
        """Have the broker forget every message."""
        if self.is_redis:
            self.broker.flush_all()
        else:
            wait_until(lambda: self.broker.channel.queue_purge(QUEUE).method.message_count)

    def is_done(self) -> bool:
        """Say whether nothing waits, is delayed, or (where the broker can tell) is being worked on."""
        state = self.state()
        return not state.waiting and not state.delayed and not state.running

    def close(self) -> None:
        if not self.is_redis:
            dramatiq.set_broker(self._before)
            for name in (QUEUE, dq_name(QUEUE), xq_name(QUEUE)):
                self.broker.channel.queue_delete(name)
            self.broker.close()


@pytest.fixture(params=["redis", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def jobs(request: pytest.FixtureRequest, settings: Any, processes: Processes, gate: Path, file: Path) -> Iterator[Jobs]:
    """The test's jobs on one broker; the test runs on each."""
    url = settings.BROKER_URL if request.param == "redis" else RABBITMQ_URL
    started = Jobs(url, processes, {"JOBS_GATE": str(gate), "JOBS_FILE": str(file)})
    yield started
    processes.close()
    started.close()


@pytest.fixture
def broker(settings: Any, caplog: pytest.LogCaptureFixture) -> Iterator[StubBroker]:
    """A broker in this process, which says quickly what becomes of a message."""
    settings.LEASES_RETRY_DELAY = timedelta(milliseconds=50)
    caplog.set_level(logging.INFO, "leases")
    broker = StubBroker(middleware=[DatabaseConnections(), CurrentMessage()])
    before = dramatiq.get_broker()
    dramatiq.set_broker(broker)
    yield broker
    broker.close()
    dramatiq.set_broker(before)


@contextmanager
def working(broker: dramatiq.Broker) -> Iterator[None]:
    """Have one thread work on the broker's messages meanwhile."""
    worker = Worker(broker, worker_threads=1, worker_timeout=50)
    worker.start()
    try:
        yield
    finally:
        worker.stop()
