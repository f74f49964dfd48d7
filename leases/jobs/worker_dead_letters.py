"""A Dramatiq middleware that keeps what failed for good."""

from typing import Any

from dramatiq.middleware import Middleware


class DeadLetters(Middleware):
    """Writes a row for each message that the broker is told to give up on.

    broker.add_middleware(DeadLetters())
    """

    def after_nack(self, broker: Any, message: Any) -> None:
        # django_dramatiq makes its middleware before there are models.
        from leases.jobs.dead_letters import record

        record(message)
