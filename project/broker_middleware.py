"""The Dramatiq middleware of this project: database connections and the context of log lines."""

from typing import Any

import dramatiq
from django.db import close_old_connections, connections
from dramatiq.middleware import Middleware

from project import logs


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
