"""Jobs that cannot run now: they keep their place, their retries and their names, whatever their broker does."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import dramatiq
import pytest
import redis
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import CurrentMessage, Retries
from redis.backoff import NoBackoff
from redis.retry import Retry

from leases import leased, once
from leases.errors import LeaseUnavailable
from leases.jobs import DeadLetters
from leases.jobs.brokers import middleware
from leases.jobs.brokers.middleware import DatabaseConnections, KeptRetries
from leases.jobs.brokers.redis_broker import ServerTimeRedisBroker
from leases.models import DeadLetter
from tests.once.conftest import working
from tests.servers.redis_server import PrivateRedis
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_dead_letter_of_a_second_broker_has_the_key_of_its_job(broker: StubBroker) -> None:
    second = StubBroker(middleware=[DatabaseConnections(), CurrentMessage(), Retries(), DeadLetters()])

    @dramatiq.actor(broker=second, max_retries=0)
    @once("welcome:{thing}")
    def welcome(thing: str) -> None:
        raise RuntimeError("as told")

    with working(second):
        welcome.send("a")
        letter = wait_until(DeadLetter.objects.first)
    second.close()
    assert letter
    assert letter.key == "welcome:a"


def test_message_whose_id_no_column_has_room_for_runs_like_any_other(broker: StubBroker) -> None:
    @dramatiq.actor
    @leased("thing:{thing}", on_conflict="serial")
    @once("welcome:{thing}:{number}")
    def welcome(thing: str, number: int) -> None:
        done.append(number)

    @dramatiq.actor
    @once("charge:{thing}:{number}", on_crash="park")
    def charge(thing: str, number: int) -> None:
        done.append(number)

    done: list[int] = []
    with working(broker):
        for actor in (welcome, charge):
            for number, message_id in enumerate(["x" * 80, "x" * 81, "null\0", "\ud800"]):
                broker.enqueue(replace(actor.message("a", number), message_id=message_id))
        wait_until(lambda: sorted(done) == sorted([0, 1, 2, 3] * 2))
        broker.join(welcome.queue_name)
    assert not broker.dead_letters


def test_serial_job_that_could_not_begin_keeps_its_place(broker: StubBroker, settings: Any) -> None:
    """Redis or the database was away for a moment; those behind it must not overtake."""
    settings.LEASES_TURN_DELAY = timedelta(milliseconds=50)
    settings.LEASES_RETRY_DELAY = timedelta(milliseconds=500)

    @dramatiq.actor
    @leased("thing:{thing}", on_conflict="serial")
    def job(thing: str, number: int) -> None:
        if number not in begun:
            begun.append(number)
            if number == 0:
                raise LeaseUnavailable(thing, reason="as told")
        order.append(number)

    begun: list[int] = []
    order: list[int] = []
    with working(broker):
        for number in range(3):
            job.send("a", number)
        wait_until(lambda: len(order) == 3)
        broker.join(job.queue_name)
    assert order == [0, 1, 2]


def test_busy_job_whose_broker_is_away_waits_for_it_and_uses_up_no_retry(
    broker: StubBroker, redis_server: PrivateRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has none."""
    monkeypatch.setattr(middleware, "ENQUEUE_AGAIN_S", 0.2)
    monkeypatch.setattr("dramatiq.worker.POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.2)
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 0.2)
    client = redis.Redis.from_url(redis_server.url, retry=Retry(NoBackoff(), 0), socket_timeout=2)
    middlewares = [DatabaseConnections(), CurrentMessage(), KeptRetries(max_retries=0)]
    second = ServerTimeRedisBroker(client=client, middleware=middlewares)

    @dramatiq.actor(broker=second)
    @leased("inner:{thing}")
    def job(thing: str) -> None:
        runs.append(thing)
        if len(runs) == 1:
            redis_server.kill()
            raise LeaseUnavailable(thing, reason="as told")

    runs: list[str] = []
    with working(second):
        job.send("a")
        wait_until(lambda: runs)
        redis_server.restart()
        wait_until(lambda: len(runs) == 2, 20)
