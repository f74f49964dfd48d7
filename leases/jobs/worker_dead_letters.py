"""A Dramatiq middleware that keeps what failed for good."""

import logging
import threading
from typing import Any

from django.db import InterfaceError, InternalError, OperationalError, close_old_connections
from dramatiq.middleware import Middleware

from leases.jobs.worker_shutdown import leave

logger = logging.getLogger("leases")

#: How long to wait for a database that is away, or read-only after a failover, before the row is written again.
WRITE_AGAIN_S = 5.0

#: Message option, never sent: its row is written.
_KEPT = "leases_kept"


class DeadLetters(Middleware):
    """Writes a row for each message that the broker is to give up on, before it does.

    broker.add_middleware(DeadLetters())

    A worker thread whose database is away waits for it. If the process ends meanwhile, or is told to, the brokers of
    this package have the message delivered again; others keep it among their own dead letters only. A process that is
    killed between the two has the message delivered again and may leave a second row.
    """

    def __init__(self) -> None:
        self._leaving = threading.Event()

    def before_worker_boot(self, broker: Any, worker: Any) -> None:
        self._leaving.clear()

    def before_worker_shutdown(self, broker: Any, worker: Any) -> None:
        self._leaving.set()

    def before_nack(self, broker: Any, message: Any) -> None:
        # django_dramatiq makes its middleware before there are models.
        from leases.jobs.dead_letters import record

        while _KEPT not in message.options:
            try:
                record(message, broker)
            except (OperationalError, InterfaceError, InternalError) as error:
                close_old_connections()
                if self._leaving.is_set():
                    logger.warning(
                        "%s is no dead letter yet and will be delivered again: %s", message.message_id, error
                    )
                    leave(message)
                    return
                logger.error("A dead letter could not be written: %s. It is tried again in %s s.", error, WRITE_AGAIN_S)
                self._leaving.wait(WRITE_AGAIN_S)
            else:
                message.options[_KEPT] = True
