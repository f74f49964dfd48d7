"""The RabbitMQ broker: a message that was taken is there, and a connection that is dead is found."""

import os
from collections.abc import Iterator
from typing import Any

import pika.exceptions
import pytest
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.common import dq_name, xq_name

from project.broker import make_broker
from tests.servers.needs import RABBITMQ_URL

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


def test_publish_that_reaches_no_queue_is_an_error(broker: Any) -> None:  # outbox D17
    """Without confirms it would go nowhere, unseen."""
    with pytest.raises(pika.exceptions.UnroutableError):
        broker.channel.basic_publish(exchange="", routing_key="nobody", body=b"", mandatory=True)


def test_connection_has_a_heartbeat(broker: Any) -> None:  # outbox D22
    """django_dramatiq's default is none: a worker whose server is gone would wait for ever."""
    assert 0 < broker.connection._impl.params.heartbeat <= 60
