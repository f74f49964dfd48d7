"""What any broker needs around its jobs: fresh connections, retries that are kept, a stop that holds up nothing."""

import logging
import threading
from typing import Any

import dramatiq
import redis
from django.db import close_old_connections, connections
from dramatiq.common import iter_queue
from dramatiq.errors import BrokerConnectionError
from dramatiq.middleware import Middleware, Retries

from leases.jobs.worker_shutdown import leave

logger = logging.getLogger("leases")

#: How long to wait before a retry that could not be enqueued is enqueued again; Dramatiq waits so for acknowledgements.
ENQUEUE_AGAIN_S = 5.0

#: The broker does not answer, or takes no writes because it is full or has become a replica; it may come back.
_AWAY = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.OutOfMemoryError,
    redis.ReadOnlyError,
    BrokerConnectionError,
)
#: What stands in place of the actor's name where a message cannot be decoded.
UNREADABLE = "(cannot be read)"


class DatabaseConnections(Middleware):
    """Closes stale database connections around each message, and all of a thread's when it ends.

    Django does that around each request only; a worker thread would keep a connection that the server, a pooler or a
    firewall has dropped long ago, and fail every message from then on.
    """

    def before_process_message(self, broker: dramatiq.Broker, message: dramatiq.MessageProxy) -> None:
        close_old_connections()

    def after_process_message(
        self,
        broker: dramatiq.Broker,
        message: dramatiq.MessageProxy,
        *,
        result: Any = None,
        exception: BaseException | None = None,
    ) -> None:
        close_old_connections()

    def after_skip_message(self, broker: dramatiq.Broker, message: dramatiq.MessageProxy) -> None:
        close_old_connections()

    def before_worker_thread_shutdown(self, broker: dramatiq.Broker, thread: Any) -> None:
        connections.close_all()

    def before_consumer_thread_shutdown(self, broker: dramatiq.Broker, thread: Any) -> None:
        connections.close_all()


class KeptRetries(Retries):
    """Retries that a broker which is away cannot lose.

    Dramatiq swallows an error while it enqueues the retry, and then acknowledges the message that failed: the job is
    gone without a trace. Here the worker thread, which could do nothing else without its broker, waits for it; if the
    process ends meanwhile, or is told to, the message is never acknowledged and comes again. What cannot be enqueued
    for another reason becomes a dead letter.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._leaving = threading.Event()

    def before_worker_boot(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        self._leaving.clear()

    def before_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        self._leaving.set()

    def patient(self, broker: dramatiq.Broker) -> Any:
        """Return what enqueues like `broker`, and waits while that is away and the worker may stay."""
        return _Waiting(broker, self._leaving)

    def after_process_message(
        self,
        broker: dramatiq.Broker,
        message: dramatiq.MessageProxy,
        *,
        result: Any = None,
        exception: BaseException | None = None,
    ) -> None:
        try:
            super().after_process_message(self.patient(broker), message, result=result, exception=exception)
        except _AWAY as error:
            logger.warning("%s could not be retried and will be delivered again: %s", message.message_id, error)
            leave(message)
        except Exception:
            logger.exception("Message %s could not be retried and becomes a dead letter.", message.message_id)
            message.fail()


class UnstartedGivenBack(Middleware):
    """Has a worker that is told to stop give its messages back at once, except those whose jobs are running.

    Only the consumers of the brokers in this package can do that.
    """

    def before_worker_boot(self, broker: Any, worker: dramatiq.Worker) -> None:
        if hasattr(broker, "leaving"):
            broker.leaving.clear()

    def before_worker_shutdown(self, broker: Any, worker: dramatiq.Worker) -> None:
        if hasattr(broker, "leaving"):
            broker.leaving.set()
        unstarted = [item.message for item in iter_queue(worker.work_queue)]
        for queue_name, thread in worker.consumers.items():
            consumer: Any = thread.consumer
            # Delayed messages that become due while jobs end go on to their queue, so their consumer goes on too.
            if consumer is None or queue_name.endswith(".DQ"):
                continue
            mine = [message for message in unstarted if message.queue_name == queue_name]
            try:
                consumer.stop_fetching(mine)
            except BrokerConnectionError as error:
                logger.warning("Messages of %s come back when the broker does: %s", queue_name, error)
                continue
            logger.info(
                "Gave back %d messages of %s that were not begun.",
                len(mine),
                queue_name,
                extra={"event": "messages.given_back", "queue": queue_name, "count": len(mine)},
            )


class Unreadable(dramatiq.MessageProxy):
    """Stands for a message that cannot be decoded: no actor has its name, so it is rejected and becomes a dead letter.

    queue_name: where it was. message_id: the broker's own name for it. data: what it is. error: why it cannot be read.
    """

    _tag: int

    def __init__(self, queue_name: str, message_id: str, data: bytes, error: BaseException) -> None:
        options = {"redis_message_id": message_id}
        super().__init__(dramatiq.Message(queue_name, UNREADABLE, (repr(data),), {}, options, message_id))
        self._error = error

    def stuff_exception(self, exception: BaseException) -> None:
        super().stuff_exception(self._error)


class _Waiting:
    """A broker whose `enqueue` waits for as long as the real one is away and the worker may stay."""

    def __init__(self, broker: dramatiq.Broker, leaving: threading.Event) -> None:
        self._broker = broker
        self._leaving = leaving

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def enqueue(self, message: "dramatiq.Message[Any]", *, delay: int | None = None) -> "dramatiq.Message[Any]":
        while True:
            try:
                return self._broker.enqueue(message, delay=delay)
            except _AWAY as error:
                if self._leaving.is_set():
                    raise
                logger.error("The broker is away: %s. A job is enqueued again in %s s.", error, ENQUEUE_AGAIN_S)
                self._leaving.wait(ENQUEUE_AGAIN_S)
