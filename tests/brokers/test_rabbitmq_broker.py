"""The RabbitMQ broker: a message that was taken is there, and a connection that is dead is found."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from queue import Queue
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import dramatiq
import pika.exceptions
import pytest
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.common import dq_name, xq_name
from dramatiq.errors import BrokerConnectionError

from leases.jobs import workload
from leases.jobs.brokers import rabbitmq_broker
from leases.jobs.brokers.middleware import UnstartedGivenBack
from project.broker import make_broker
from tests.leases.proxy import Proxy
from tests.servers.needs import RABBITMQ_URL
from tests.waiting import wait_until

pytestmark = pytest.mark.rabbitmq
QUEUE = f"kept{os.getpid()}"


@pytest.fixture
def broker() -> Iterator[Any]:
    made: Any = make_broker(RABBITMQ_URL)
    made.declare_queue(QUEUE, ensure=True)
    yield made
    for name in (QUEUE, dq_name(QUEUE), xq_name(QUEUE)):
        made.channel.queue_delete(name)
    made.close()


@pytest.mark.parametrize("kind", ["_declare_queue", "_declare_dq_queue", "_declare_xq_queue"])
def test_queues_are_quorum_queues(broker: Any, kind: str) -> None:  # outbox D17
    """The server refuses to take one for the library's own kind, which is lost with its node."""
    classic = RabbitmqBroker(url=RABBITMQ_URL, middleware=[])
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=r"x-queue-type.*'quorum'"):
        getattr(classic, kind)(QUEUE)
    classic.close()


@pytest.mark.parametrize("kind", ["_declare_queue", "_declare_dq_queue"])
def test_message_that_is_delivered_again_and_again_is_not_taken_away(
    broker: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ 4 has a limit of 20 where none was declared."""
    monkeypatch.setattr(rabbitmq_broker, "_DELIVERIES", 20)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=r"x-delivery-limit.*received '20' but current is"):
        getattr(broker, kind)(QUEUE)
    del broker.connection


@pytest.mark.parametrize("answer", ["ack", "nack", "stop_fetching"])
def test_message_of_a_broken_connection_is_not_taken_for_one_of_the_next(broker: Any, answer: str) -> None:
    # outbox D17
    """Tags begin anew with each connection: the answer for the first would be one for another that is running."""
    for number in (1, 2):
        broker.enqueue(dramatiq.Message(QUEUE, "job", (number,), {}, {}))
    broken = broker.consume(QUEUE, prefetch=1, timeout=200)
    first = next(broken)
    broken.close()
    consumer = broker.consume(QUEUE, prefetch=1, timeout=200)
    running = next(consumer)
    assert running._tag == first._tag
    getattr(consumer, answer)([first] if answer == "stop_fetching" else first)
    next(consumer)  # what is to be told is told while it looks for messages
    other = broker.consume(QUEUE, prefetch=2, timeout=200)
    assert running.args not in [message.args for message in (next(other), next(other)) if message is not None]
    consumer.close()  # before the running one was acknowledged, as when its process dies
    assert wait_until(lambda: next(other)).args == running.args
    other.close()


def test_consumer_that_was_told_to_stop_fetches_nothing_over_its_next_connection(broker: Any) -> None:
    """The worker that is leaving would keep it until its last job has ended."""
    worker: Any = SimpleNamespace(work_queue=Queue(), consumers={})
    stop = UnstartedGivenBack()
    stop.before_worker_boot(broker, worker)
    consumer = broker.consume(QUEUE, prefetch=1, timeout=100)
    worker.consumers[QUEUE] = SimpleNamespace(consumer=consumer)
    stop.before_worker_shutdown(broker, worker)
    consumer.close()
    broker.enqueue(dramatiq.Message(QUEUE, "job", (), {}, {}))
    again = broker.consume(QUEUE, prefetch=1, timeout=100)
    assert [next(again), next(again)] == [None, None]
    again.close()
    stop.before_worker_boot(broker, worker)
    third = broker.consume(QUEUE, prefetch=1, timeout=100)
    assert wait_until(lambda: next(third))
    third.close()


@pytest.mark.parametrize("is_known", [True, False])
def test_server_that_is_frozen_or_whose_name_is_unknown_is_a_broker_that_is_away(
    is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What pika raises for these is no connection error: a retry that met it became a dead letter."""
    monkeypatch.setattr(rabbitmq_broker, "_CONNECT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}" if is_known else "nowhere.invalid"
        away = make_broker(f"amqp://guest:guest@{host}/%2F")
        with pytest.raises(BrokerConnectionError):
            away.enqueue(dramatiq.Message(QUEUE, "job", (), {}, {}))
        with pytest.raises(BrokerConnectionError):
            away.consume(QUEUE)
    away.close()


def test_publish_that_reaches_no_queue_is_an_error(broker: Any) -> None:  # outbox D17
    """Without confirms it would go nowhere, unseen."""
    with pytest.raises(pika.exceptions.UnroutableError):
        broker.channel.basic_publish(exchange="", routing_key="nobody", body=b"", mandatory=True)


def test_consumer_of_a_leaving_worker_does_not_wait_for_a_frozen_server_to_say_goodbye(broker: Any) -> None:
    """Each queue has two, and each waited for a minute or two."""
    address = urlsplit(RABBITMQ_URL)
    proxy = Proxy(address.port or 5672)
    behind = address._replace(netloc=f"{address.username}:{address.password}@127.0.0.1:{proxy.port}")
    away: Any = rabbitmq_broker.QuorumRabbitmqBroker(url=behind.geturl(), middleware=[])
    consumer = away.consume(QUEUE, prefetch=1, timeout=100)
    threads = threading.active_count()
    proxy.silent = True
    away.leaving.set()
    began = time.monotonic()
    consumer.close()
    assert time.monotonic() - began < 10
    proxy.close()
    wait_until(lambda: threading.active_count() <= threads)
    del away.connection


def test_depth_is_shown_after_the_connection_died_of_idleness(broker: Any) -> None:
    """A thread that serves requests sends no heartbeats in between, and RabbitMQ hangs up."""
    broker.enqueue(dramatiq.Message(QUEUE, "job", (), {}, {}))
    broker.connection.close()
    assert wait_until(lambda: workload.measure(broker=broker, queues=[QUEUE])[0].waiting) == 1


def test_connection_has_a_heartbeat(broker: Any) -> None:  # outbox D22
    """django_dramatiq's default is none: a worker whose server is gone would wait for ever."""
    assert 0 < broker.connection._impl.params.heartbeat <= 60
