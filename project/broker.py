"""The Dramatiq broker: built here and set by `ProjectConfig.ready()`, before any actor is imported.

PostgreSQL decides what is to be done, and the rescuer enqueues again what a broker lost.
"""

from typing import Any

import dramatiq
from dramatiq.middleware import Middleware

from leases.jobs import brokers
from project import logs


def make_broker(url: str) -> dramatiq.Broker:
    """Return the hardened broker that `url` names, with log lines that say whose job they belong to."""
    return brokers.make_broker(url, first=[JobContext()])  # first in, last out: also of what the others log


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
