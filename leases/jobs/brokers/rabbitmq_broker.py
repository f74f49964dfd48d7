"""Dramatiq's RabbitMQ broker, so that a message which was taken is there.

Quorum queues, because a classic queue is lost with its node; publisher confirms, because a publish that nobody
confirmed may have gone nowhere. RabbitMQ closes the channel of a consumer that holds a message for longer than its
`consumer_timeout`, and gives the message to another worker: it must be above LEASES_MAX_HOLD and TIME_LIMIT_MARGIN.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import dramatiq
import pika.exceptions
from dramatiq.brokers.rabbitmq import DEAD_MESSAGE_TTL, RabbitmqBroker, _RabbitmqConsumer
from dramatiq.common import xq_name
from dramatiq.errors import ConnectionClosed, DecodeError
from dramatiq.message import Message
from dramatiq.middleware import Middleware

from leases.jobs.brokers.middleware import Unreadable
from leases.jobs.worker_shutdown import is_left

#: A connection on which nothing comes for twice this long is dead.
_HEARTBEAT_S = 30
#: How long a publish may wait while RabbitMQ is short of memory or disk.
_BLOCKED_S = 30


class Consumer(_RabbitmqConsumer):
    """Takes messages from one queue; told to stop, it gives back at once what no job was begun for.

    Dramatiq keeps them until its jobs have ended. Acknowledgements of those still go through here. What cannot be
    decoded is rejected like any other message, so that a dead letter tells of it.
    """

    def __init__(self, broker: "QuorumRabbitmqBroker", queue_name: str, prefetch: int, timeout: int) -> None:
        super().__init__(broker, queue_name, prefetch, timeout)
        self._timeout_s = timeout / 1000
        self._unstarted: list[int] | None = None
        self._cancelled = False
        self._unreadable: Unreadable | None = None
        self.iterator = self._readable(self.iterator)

    def stop_fetching(self, unstarted: list[dramatiq.MessageProxy]) -> None:
        """Take nothing more, and give back what no job was begun for; done by the thread that owns the connection."""
        self._unstarted = [message._tag for message in unstarted]

    def ack(self, message: Any) -> None:
        if not is_left(message):
            super().ack(message)

    def nack(self, message: Any) -> None:
        if not is_left(message):
            super().nack(message)

    def __next__(self) -> Any:
        if self._unstarted is None:
            message = super().__next__()
            if message is None and self._unreadable is not None:
                message, self._unreadable = self._unreadable, None
                self.known_tags.add(message._tag)
            return message
        try:
            if not self._cancelled:
                self._cancelled = True
                self.channel.cancel()
                for tag in self._unstarted:
                    self.known_tags.discard(tag)
                    self.channel.basic_nack(tag, requeue=True)
            self.connection.process_data_events(time_limit=self._timeout_s)
        except (pika.exceptions.AMQPConnectionError, pika.exceptions.AMQPChannelError) as error:
            raise ConnectionClosed(error) from None
        return None

    def _readable(self, deliveries: Iterator[tuple[Any, Any, Any]]) -> Iterator[tuple[Any, Any, Any]]:
        for method, properties, body in deliveries:
            try:
                if method is not None:
                    Message.decode(body)
            except DecodeError as error:
                tag = method.delivery_tag
                self._unreadable = Unreadable(self.queue_name, f"{tag}", body, error.error)
                self._unreadable._tag = tag
                yield None, None, None
            else:
                yield method, properties, body


class QuorumRabbitmqBroker(RabbitmqBroker):
    """The RabbitMQ broker on quorum queues, with publisher confirms.

    The type of a queue cannot be changed: queues that another broker declared as classic ones must be empty and
    deleted first, else declaring them fails with PRECONDITION_FAILED.

    middleware: default `default_middleware()`. The rest as Dramatiq's.
    """

    def __init__(self, *, middleware: Sequence[Middleware] | None = None, **options: Any) -> None:
        if middleware is None:
            from leases.jobs.brokers import default_middleware

            middleware = default_middleware()
        super().__init__(middleware=list(middleware), **{**options, "confirm_delivery": True})
        for parameters in self.parameters if isinstance(self.parameters, list) else [self.parameters]:
            parameters.heartbeat = _HEARTBEAT_S
            parameters.blocked_connection_timeout = _BLOCKED_S

    @property
    def consumer_class(self) -> type[Consumer]:
        return Consumer

    def _build_queue_arguments(self, queue_name: str) -> dict[str, Any]:
        return {**super()._build_queue_arguments(queue_name), "x-queue-type": "quorum"}

    def _declare_xq_queue(self, queue_name: str) -> Any:
        return self.channel.queue_declare(
            queue=xq_name(queue_name),
            durable=True,
            arguments={"x-queue-type": "quorum", "x-message-ttl": DEAD_MESSAGE_TTL},
        )
