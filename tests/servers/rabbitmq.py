"""Queues of a RabbitMQ server that other test runs may use too."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel

from tests.waiting import wait_until


@contextmanager
def own_queues(url: str, names: Sequence[str]) -> Iterator[BlockingChannel]:
    """Have these queues to oneself for a while: other runs wait until they are deleted again.

    A queue that is exclusive to one connection is the lock.
    """
    parameters = pika.URLParameters(url)
    parameters.heartbeat = 0  # nothing is read from the connection while the test runs
    connection = pika.BlockingConnection(parameters)

    def is_mine() -> bool:
        try:
            connection.channel().queue_declare(f"tests:{names[0]}", exclusive=True)
        except pika.exceptions.ChannelClosedByBroker:
            return False
        return True

    try:
        wait_until(is_mine, 120)
        channel = connection.channel()
        for name in names:
            channel.queue_delete(name)
        yield channel
        for name in names:
            channel.queue_delete(name)
    finally:
        connection.close()
