"""Dramatiq's RabbitMQ broker, so that a message which was taken is there.

Quorum queues, because a classic queue is lost with its node; publisher confirms, because a publish that nobody
confirmed may have gone nowhere. RabbitMQ closes the channel of a consumer that holds a message for longer than its
`consumer_timeout`, and gives the message to another worker: it must be above LEASES_MAX_HOLD and TIME_LIMIT_MARGIN.
"""

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import dramatiq
import pika
import pika.exceptions
from dramatiq.brokers.rabbitmq import DEAD_MESSAGE_TTL, RabbitmqBroker, _RabbitmqConsumer, _RabbitmqMessage
from dramatiq.common import q_name, xq_name
from dramatiq.errors import ConnectionClosed, DecodeError
from dramatiq.message import Message
from dramatiq.middleware import Middleware
from pika.adapters.utils.connection_workflow import AMQPConnectorException

from leases.jobs.brokers.middleware import Unreadable
from leases.jobs.worker_shutdown import is_left

logger = logging.getLogger("leases")

#: A connection on which nothing comes for twice this long is dead.
_HEARTBEAT_S = 30
#: How long a publish may wait while RabbitMQ is short of memory or disk.
_BLOCKED_S = 30
#: How long a server may take to let us in.
_CONNECT_S = 5
#: How often a message may be delivered again. RabbitMQ 4 takes it away after 20 times, unseen, and a delayed message is
#: delivered again with every worker that ends meanwhile.
_DELIVERIES = 2**31 - 1
#: How long a worker that was told to stop waits until a connection is closed in due form.
_LAST_CLOSE_S = 1.0
_NO_SUCH_QUEUE = 404
#: What pika raises, beside its connection errors, for a server that is frozen and for a name that is not known.
_UNREACHABLE = (AMQPConnectorException, OSError)


class Consumer(_RabbitmqConsumer):
    """Takes messages from one queue; told to stop, it gives back at once what no job was begun for.

    Dramatiq keeps them until its jobs have ended. Acknowledgements of those still go through here. What cannot be
    decoded is rejected like any other message, so that a dead letter tells of it.

    A message's tag counts the deliveries of one channel. After a broken connection the same number is another message,
    so what an earlier consumer took is not answered for here: RabbitMQ has it delivered again.
    """

    def __init__(self, broker: "QuorumRabbitmqBroker", queue_name: str, prefetch: int, timeout: int) -> None:
        super().__init__(broker, queue_name, prefetch, timeout)
        self._timeout_s = timeout / 1000
        self._unstarted: list[int] | None = [] if broker.leaving.is_set() and not queue_name.endswith(".DQ") else None
        self._cancelled = False

    def stop_fetching(self, unstarted: list[dramatiq.MessageProxy]) -> None:
        """Take nothing more, and give back what no job was begun for; done by the thread that owns the connection."""
        self._unstarted = [message._tag for message in unstarted if self._is_mine(message)]

    def ack(self, message: Any) -> None:
        if not is_left(message) and self._is_mine(message):
            super().ack(message)

    def nack(self, message: Any) -> None:
        if not is_left(message) and self._is_mine(message):
            super().nack(message)

    def __next__(self) -> Any:
        try:
            return self._take() if self._unstarted is None else self._wait()
        except (AssertionError, pika.exceptions.AMQPConnectionError, pika.exceptions.AMQPChannelError) as error:
            if getattr(error, "reply_code", None) == _NO_SUCH_QUEUE:
                self.broker.queues_pending.add(q_name(self.queue_name))
            raise ConnectionClosed(error) from None

    def close(self) -> None:
        """Close the connection; a worker that is leaving does not wait long, and its end closes it as well."""
        if not self.broker.leaving.is_set():
            super().close()
            return
        closing = threading.Thread(target=self._close, daemon=True)
        closing.start()
        closing.join(_LAST_CLOSE_S)
        if closing.is_alive():
            logger.warning("RabbitMQ does not answer, and the connection for %s is left to it.", self.queue_name)

    def _close(self) -> None:
        with suppress(ConnectionClosed):
            super().close()

    def _take(self) -> Any:
        method, _, body = next(self.iterator)
        if method is None:
            return None
        tag = method.delivery_tag
        message: Any
        try:
            message = _RabbitmqMessage(method.redelivered, tag, Message.decode(body))
        except DecodeError as error:
            message = Unreadable(self.queue_name, f"{tag}", body, error.error)
            message._tag = tag
        message._taken_by = self
        self.known_tags.add(tag)
        return message

    def _wait(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self.channel.cancel()
            for tag in self._unstarted or ():
                self.known_tags.discard(tag)
                self.channel.basic_nack(tag, requeue=True)
        self.connection.process_data_events(time_limit=self._timeout_s)

    def _is_mine(self, message: Any) -> bool:
        if message._taken_by is self:
            return True
        logger.warning("%s was taken over a connection that broke, and is delivered again.", message.message_id)
        return False


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
        #: Set once this process was told to stop.
        self.leaving = threading.Event()
        super().__init__(middleware=list(middleware), **{**options, "confirm_delivery": True})
        for parameters in self.parameters if isinstance(self.parameters, list) else [self.parameters]:
            parameters.heartbeat = _HEARTBEAT_S
            parameters.blocked_connection_timeout = _BLOCKED_S
            parameters.socket_timeout = parameters.stack_timeout = _CONNECT_S

    @property
    def connection(self) -> pika.BlockingConnection:
        """The connection of this thread."""
        try:
            return super().connection
        except _UNREACHABLE as error:
            if self.leaving.is_set():
                raise ConnectionClosed(error) from error  # Dramatiq tries the other one six times
            raise pika.exceptions.AMQPConnectionError(error) from error

    @connection.deleter
    def connection(self) -> None:
        vars(RabbitmqBroker)["connection"].__delete__(self)

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> dramatiq.Consumer:
        try:
            return super().consume(queue_name, prefetch, timeout)
        except _UNREACHABLE as error:
            raise ConnectionClosed(error) from error

    def get_queue_message_counts(self, queue_name: str) -> tuple[int, int, int]:
        """Return how many messages wait, are delayed and are dead; raises dramatiq.errors.ConnectionClosed."""
        closed = (pika.exceptions.AMQPConnectionError, pika.exceptions.AMQPChannelError)
        try:
            return super().get_queue_message_counts(queue_name)
        except closed:
            del self.connection  # it may have died of idleness; there will be another
        try:
            return super().get_queue_message_counts(queue_name)
        except closed as error:
            raise ConnectionClosed(error) from error

    @property
    def consumer_class(self) -> type[Consumer]:
        return Consumer

    def _build_queue_arguments(self, queue_name: str) -> dict[str, Any]:
        arguments = super()._build_queue_arguments(queue_name)
        return {**arguments, "x-queue-type": "quorum", "x-delivery-limit": _DELIVERIES}

    def _declare_xq_queue(self, queue_name: str) -> Any:
        return self.channel.queue_declare(
            queue=xq_name(queue_name),
            durable=True,
            arguments={"x-queue-type": "quorum", "x-message-ttl": DEAD_MESSAGE_TTL},
        )
