"""What the keeper has to ask PostgreSQL, done beside it: the database may be slow, renewals may not."""

import atexit
import logging
import os
import queue
import threading
import time
from collections.abc import Callable

from django.db import Error as DatabaseFailure
from django.db import connections
from redis.exceptions import RedisError

logger = logging.getLogger("leases")

#: How long a process that ends waits for the errands it has still to run.
_LAST_ERRANDS_S = 2.0
#: Several, so that one slow answer does not hold up the stopping of another job.
_WORKERS = 4


class Errands:
    """Runs functions in a few daemon threads that start when first needed."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything; a forked child starts with no errands of its parent's."""
        self._lock = threading.Lock()
        self._workers: list[threading.Thread] = []
        self._queue: queue.Queue[tuple[Callable[[], None], str]] = queue.Queue()

    def run(self, errand: Callable[[], None], *, failed: str) -> None:
        """Run `errand` soon; an error in it is logged and stops nothing.

        `failed` says what was not done then, and what makes up for it.
        """
        self._queue.put((errand, failed))
        with self._lock:
            if len(self._workers) < min(_WORKERS, self._queue.unfinished_tasks):
                worker = threading.Thread(target=self._work, name="leases-errands", daemon=True)
                self._workers.append(worker)
                worker.start()

    def finish(self) -> None:
        """Wait a short while for what is under way; called when the process ends."""
        give_up_at = time.monotonic() + _LAST_ERRANDS_S
        with self._queue.all_tasks_done:
            while self._queue.unfinished_tasks and (left := give_up_at - time.monotonic()) > 0:
                self._queue.all_tasks_done.wait(left)

    def _work(self) -> None:
        while True:
            errand, failed = self._queue.get()
            try:
                errand()
            except Exception as error:
                is_outage = isinstance(error, (DatabaseFailure, RedisError))
                logger.log(
                    logging.WARNING if is_outage else logging.ERROR,
                    "%s (%s)",
                    failed,
                    " ".join(str(error).split()) or type(error).__name__,
                    exc_info=not is_outage,
                    extra={"event": "errand.failed"},
                )
            finally:
                connections.close_all()
                self._queue.task_done()


errands = Errands()
#: Stopping a job waits for no report: a database that is slow to take these would hold up all the stops behind them.
stops = Errands()
atexit.register(errands.finish)
for each in (errands, stops):
    os.register_at_fork(after_in_child=each.reset)
