"""What the keeper has to ask PostgreSQL, done beside it: the database may be slow, renewals may not."""

import atexit
import logging
import os
import queue
import threading
from collections.abc import Callable

from django.db import connections

logger = logging.getLogger("leases")

#: How long a process that ends waits for the errands it has still to run.
_LAST_ERRANDS_S = 2.0


class Errands:
    """Runs functions one after another in one daemon thread that starts when first needed."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything; a forked child starts with no errands of its parent's."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def run(self, errand: Callable[[], None]) -> None:
        """Run `errand` soon; an error in it is logged and stops nothing."""
        self._queue.put(errand)
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="leases-errands", daemon=True)
                self._thread.start()

    def finish(self) -> None:
        """Wait a short while for what is under way; called when the process ends."""
        thread = self._thread
        if thread is not None and thread.is_alive():
            self._queue.put(None)
            thread.join(_LAST_ERRANDS_S)

    def _work(self) -> None:
        while (errand := self._queue.get()) is not None:
            try:
                errand()
            except Exception:
                logger.exception("An errand of the keeper failed.")
            finally:
                connections.close_all()


errands = Errands()
atexit.register(errands.finish)
os.register_at_fork(after_in_child=errands.reset)
