"""The Dramatiq middleware of this project: database connections, the context of log lines, retries that are kept."""

import logging
import time
from typing import Any

import dramatiq
import redis
from django.db import close_old_connections, connections
from dramatiq.common import iter_queue
from dramatiq.errors import BrokerConnectionError
from dramatiq.middleware import Middleware, Retries

from project import logs

logger = logging.getLogger("project.broker")

#: How long to wait before a retry that could not be enqueued is enqueued again; Dramatiq waits so for acknowledgements.
ENQUEUE_AGAIN_S = 5.0


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


class JobContext(Middleware):
    """Puts the broker message's id, and the run given as its option `run`, on every log line of the message."""

    def before_process_message(self, broker: dramatiq.Broker, message: dramatiq.MessageProxy) -> None:
        logs.enter_job(message_id=message.message_id, run=message.options.get("run"))

    def after_process_message(
        self,
        broker: dramatiq.Broker,
        message: dramatiq.MessageProxy,
        *,
        result: Any = None,
        exception: BaseException | None = None,
    ) -> None:
        logs.leave_job()

    def after_skip_message(self, broker: dramatiq.Broker, message: dramatiq.MessageProxy) -> None:
        logs.leave_job()


class KeptRetries(Retries):
    """Retries that a broker which is away cannot lose.

    Dramatiq swallows an error while it enqueues the retry, and then acknowledges the message that failed: the job is
    gone without a trace. Here the worker thread, which could do nothing else without its broker, waits for it; if the
    process ends meanwhile, the message was never acknowledged and comes again. What cannot be enqueued for another
    reason becomes a dead letter.
    """

    def after_process_message(
        self,
        broker: dramatiq.Broker,
        message: dramatiq.MessageProxy,
        *,
        result: Any = None,
        exception: BaseException | None = None,
    ) -> None:
        try:
            super().after_process_message(_Waiting(broker), message, result=result, exception=exception)
        except Exception:
            logger.exception("Message %s could not be retried and becomes a dead letter.", message.message_id)
            message.fail()


class UnstartedGivenBack(Middleware):
    """Has a worker that is told to stop give its messages back at once, except those whose jobs are running."""

    def before_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        unstarted = [item.message for item in iter_queue(worker.work_queue)]
        for queue_name, thread in worker.consumers.items():
            consumer: Any = thread.consumer
            if consumer is None:
                continue
            mine = [message for message in unstarted if message.queue_name == queue_name]
            # Delayed messages that become due while jobs end go on to their queue, so their consumer goes on too.
            if not queue_name.endswith(".DQ"):
                consumer.stop_fetching(mine)
                logger.info(
                    "Gave back %d messages of %s that were not begun.",
                    len(mine),
                    queue_name,
                    extra={"event": "messages.given_back", "queue": queue_name, "count": len(mine)},
                )


class _Waiting:
    """A broker whose `enqueue` waits for as long as the real one is away."""

    def __init__(self, broker: dramatiq.Broker) -> None:
        self._broker = broker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def enqueue(self, message: "dramatiq.Message[Any]", *, delay: int | None = None) -> "dramatiq.Message[Any]":
        while True:
            try:
                return self._broker.enqueue(message, delay=delay)
            except (redis.ConnectionError, redis.TimeoutError, BrokerConnectionError) as error:
                logger.error("A retry could not be enqueued: %s. It is tried again in %s s.", error, ENQUEUE_AGAIN_S)
                time.sleep(ENQUEUE_AGAIN_S)
