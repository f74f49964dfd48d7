"""A Dramatiq middleware that runs the watcher inside workers."""

import threading
from typing import Any

from django.db import connections
from dramatiq.middleware import Middleware

#: How long a worker that shuts down waits for its watcher to give its lease back.
_STOPPING_S = 5.0


class LeaseWatcher(Middleware):
    """Runs one candidate for the watcher in every worker process, so that nothing else needs to be started.

    broker.add_middleware(LeaseWatcher())
    """

    def __init__(self, *, using: str = "default") -> None:
        self._using = using
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def after_worker_boot(self, broker: Any, worker: Any) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="leases-watcher", daemon=True)
        self._thread.start()

    def before_worker_shutdown(self, broker: Any, worker: Any) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_STOPPING_S)

    def _run(self) -> None:
        # django_dramatiq makes its middleware before there are models.
        from leases.watcher import Watcher

        try:
            Watcher(using=self._using, stop=self._stop).run()
        finally:
            connections.close_all()
