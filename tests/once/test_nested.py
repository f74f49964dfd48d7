"""A leased actor that another calls directly: what ends the inner one ends the outer one; one message goes back."""

import threading
from datetime import timedelta
from typing import Any

import dramatiq
import pytest
from django.db import OperationalError, connection, transaction
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import CurrentMessage, Retries

from leases import hold, leased, once
from leases.errors import LeaseUnavailable
from leases.jobs.actors import OnConflict
from leases.jobs.brokers.middleware import DatabaseConnections
from tests.leases.conftest import steal
from tests.leases.threads import in_thread
from tests.once.conftest import working
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
SHORT = timedelta(milliseconds=600)


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


def test_plain_actor_whose_inner_once_waits_for_another_run_fails_and_is_retried(
    broker: StubBroker, caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    """It has a message of its own; the inner one must not take it for its own and let the outer go on with None."""
    settings.LEASES_RECEIPT_WAIT = timedelta(milliseconds=50)
    broker.add_middleware(Retries(min_backoff=50, max_backoff=50))

    @once("welcome:{thing}")
    def welcome(thing: str) -> str:
        return f"welcome {thing}"

    @dramatiq.actor
    def outer(thing: str) -> None:
        begun.append(thing)
        order.append(welcome(thing))

    def first_run() -> None:
        with transaction.atomic():
            welcome("a")
            inserted.set()
            over.wait(20)

    begun: list[str] = []
    order: list[str | None] = []
    inserted, over = threading.Event(), threading.Event()
    with in_thread(first_run), working(broker):
        assert inserted.wait(10)
        outer.send("a")
        wait_until(lambda: len(begun) >= 2)
        assert not order
        over.set()
        wait_until(lambda: order)
        broker.join(outer.queue_name)
    assert order == ["welcome a"]
    assert not events(caplog, "job.put_back")


@pytest.mark.parametrize("policy", ["retry_later", "skip", "serial"])
def test_plain_actor_whose_inner_leased_one_is_busy_fails_and_is_retried(
    policy: OnConflict, broker: StubBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.add_middleware(Retries(min_backoff=50, max_backoff=50))

    @leased("inner:{thing}", on_conflict=policy)
    def inner(thing: str) -> str:
        return f"inner {thing}"

    @dramatiq.actor
    def outer(thing: str) -> None:
        begun.append(thing)
        order.append(inner(thing))

    begun: list[str] = []
    order: list[str | None] = []
    with working(broker):
        with hold("inner:a"):
            outer.send("a")
            wait_until(lambda: len(begun) >= 2)
            assert not order
        wait_until(lambda: order)
        broker.join(outer.queue_name)
    assert order == ["inner a"]
    assert not events(caplog, "job.put_back")


def test_actor_gets_the_outcome_of_a_once_function_that_it_calls_and_whoever_comes_second_gets_it_too(
    broker: StubBroker,
) -> None:
    """Nobody wants the result of the message; the caller does."""

    @dramatiq.actor
    @once("price:{thing}")
    def price(thing: str) -> int:
        return 7

    @dramatiq.actor
    @leased("offer:{thing}")
    def leased_offer(thing: str) -> None:
        got.append(price(thing))

    @dramatiq.actor
    @once("offer:{thing}:{number}")
    def offer_once(thing: str, number: int) -> None:
        got.append(price(thing))

    @dramatiq.actor
    def offer(thing: str) -> None:
        got.append(price(thing))

    got: list[int | None] = []
    with working(broker):
        for message in [offer.message("a"), leased_offer.message("a"), offer_once.message("a", 1), offer.message("b")]:
            broker.enqueue(message)
        broker.join(offer.queue_name)
        wait_until(lambda: len(got) == 4)
    assert got == [7, 7, 7, 7]


def test_result_that_nobody_wants_is_not_handed_to_the_worker(
    broker: StubBroker, caplog: pytest.LogCaptureFixture
) -> None:
    @dramatiq.actor
    @leased("offer:{thing}")
    @once("price:{thing}")
    def price(thing: str) -> int:
        done.append(thing)
        return 7

    done: list[str] = []
    with working(broker):
        price.send("a")
        price.send("b")
        wait_until(lambda: len(done) == 2)
        broker.join(price.queue_name)
    assert "returned a value" not in caplog.text


def test_busy_job_of_a_second_broker_goes_back_to_that_one(
    broker: StubBroker, caplog: pytest.LogCaptureFixture
) -> None:
    second = StubBroker(middleware=[DatabaseConnections(), CurrentMessage()])

    @dramatiq.actor(broker=second)
    @leased("inner:{thing}")
    def job(thing: str) -> None:
        order.append(thing)

    order: list[str] = []
    try:
        with working(second):
            with hold("inner:a"):
                job.send("a")
                wait_until(lambda: events(caplog, "job.put_back") >= 2)
            wait_until(lambda: order == ["a"])
    finally:
        second.close()
    assert not second.dead_letters


def test_once_job_survives_a_database_that_is_away_before_it_begins(
    broker: StubBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It uses up no retry; this one has none."""

    @dramatiq.actor
    @once("welcome:{thing}")
    def welcome(thing: str) -> None:
        done.append(thing)

    @dramatiq.actor
    @once("charge:{thing}", on_crash="park")
    def charge(thing: str) -> None:
        done.append(thing)

    done: list[str] = []
    with working(broker):
        with monkeypatch.context() as patch:
            patch.setitem(connection.settings_dict, "PORT", "1")
            welcome.send("a")
            charge.send("b")
            wait_until(lambda: events(caplog, "job.put_back") >= 4)
            assert not done
        wait_until(lambda: sorted(done) == ["a", "b"])
        broker.join(welcome.queue_name)
    assert not broker.dead_letters


def test_once_outside_a_worker_says_that_the_database_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    @once("welcome:{thing}")
    def welcome(thing: str) -> None:
        pytest.fail("ran")

    connection.close()
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict, "PORT", "1")
        with pytest.raises(LeaseUnavailable, match="welcome:a"):
            welcome("a")


def test_database_that_goes_away_in_the_body_is_a_failure_of_the_body() -> None:
    @once("welcome:{thing}")
    def welcome(thing: str) -> None:
        raise OperationalError("as told")

    with pytest.raises(OperationalError):
        welcome("a")
