"""A leased actor that another calls directly: what ends the inner one ends the outer one; one message goes back."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import dramatiq
import pytest
from django.db import transaction
from dramatiq import Worker
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import CurrentMessage

from leases import hold, leased, once
from leases.jobs.actors import OnConflict
from leases.jobs.brokers.middleware import DatabaseConnections
from tests.leases.conftest import steal
from tests.leases.threads import in_thread
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
SHORT = timedelta(milliseconds=600)


@pytest.fixture
def broker(settings: Any, caplog: pytest.LogCaptureFixture) -> Iterator[StubBroker]:
    settings.LEASES_RETRY_DELAY = timedelta(milliseconds=50)
    caplog.set_level(logging.INFO, "leases")
    broker = StubBroker(middleware=[DatabaseConnections(), CurrentMessage()])
    before = dramatiq.get_broker()
    dramatiq.set_broker(broker)
    yield broker
    broker.close()
    dramatiq.set_broker(before)


@contextmanager
def working(broker: StubBroker) -> Iterator[None]:
    worker = Worker(broker, worker_threads=1, worker_timeout=50)
    worker.start()
    try:
        yield
    finally:
        worker.stop()


def events(caplog: pytest.LogCaptureFixture, name: str) -> int:
    return [getattr(record, "event", "") for record in caplog.records].count(name)


@pytest.mark.parametrize("policy", ["retry_later", "skip", "serial"])
@pytest.mark.parametrize("inner_policy", ["retry_later", "skip"])
def test_actor_whose_inner_one_finds_its_resource_busy_is_run_again_as_a_whole(
    policy: OnConflict, inner_policy: OnConflict, broker: StubBroker, caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    settings.LEASES_TURN_DELAY = timedelta(milliseconds=50)

    @dramatiq.actor
    @leased("inner:{thing}", on_conflict=inner_policy)
    def inner(thing: str) -> None:
        order.append("inner")

    @dramatiq.actor
    @leased("outer:{thing}", on_conflict=policy)
    def outer(thing: str) -> None:
        order.append("begins")
        inner(thing)
        order.append("ends")

    order: list[str] = []
    with working(broker):
        with hold("inner:a"):
            outer.send("a")
            wait_until(lambda: events(caplog, "job.put_back") >= 2)
            assert set(order) == {"begins"}
        wait_until(lambda: "ends" in order)
        broker.join(outer.queue_name)
    assert order[-3:] == ["begins", "inner", "ends"]
    assert order.count("ends") == order.count("inner") == 1
    assert order.count("begins") == events(caplog, "job.put_back") + 1


@pytest.mark.parametrize("lost", ["inner", "outer"])
def test_loss_of_either_lease_interrupts_both_and_puts_one_message_back(
    lost: str, broker: StubBroker, caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    settings.LEASES_RETRY_DELAY = timedelta(hours=1)

    @leased("inner:{thing}", ttl=SHORT)
    def inner(thing: str) -> None:
        running.set()
        while True:
            pass

    @dramatiq.actor
    @leased("outer:{thing}", ttl=SHORT)
    def outer(thing: str) -> None:
        try:
            inner(thing)
            order.append("went on")
        except BaseException as error:
            order.append(type(error).__name__)
            raise

    order: list[str] = []
    running = threading.Event()
    with working(broker):
        outer.send("a")
        assert running.wait(10)
        steal(f"{lost}:a")
        wait_until(lambda: events(caplog, "job.put_back") >= 1)
    assert order == ["LeaseInterrupt"]
    assert events(caplog, "job.put_back") == 1


def test_actor_whose_inner_once_waits_for_another_run_is_run_again_as_a_whole(
    broker: StubBroker, caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    settings.LEASES_RECEIPT_WAIT = timedelta(milliseconds=50)

    @once("welcome:{thing}")
    def welcome(thing: str) -> None:
        pass

    @dramatiq.actor
    @leased("outer:{thing}")
    def outer(thing: str) -> None:
        order.append("begins")
        welcome(thing)
        order.append("ends")

    def first_run() -> None:
        with transaction.atomic():
            welcome("a")
            inserted.set()
            over.wait(20)

    order: list[str] = []
    inserted, over = threading.Event(), threading.Event()
    with in_thread(first_run), working(broker):
        assert inserted.wait(10)
        outer.send("a")
        wait_until(lambda: events(caplog, "job.put_back") >= 1)
        assert "ends" not in order
        over.set()
        wait_until(lambda: "ends" in order)
    assert order.count("ends") == 1
