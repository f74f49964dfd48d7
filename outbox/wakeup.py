"""Waking drainers when something is published. Only a hint: a drainer that misses it looks at its poll interval.

NOTIFY inside the publishing transaction would take a lock that all committing transactions of the server share. So it
is sent after the commit, on its own, and at most ten times a second per process; a drainer that was woken looks twice.
"""

import logging
import threading
import time
from collections.abc import Callable

import psycopg
from django.db import DatabaseError, connections, transaction

from outbox.conf import settings

logger = logging.getLogger("outbox.wakeup")

CHANNEL = "outbox"
COALESCE_S = 0.1
LONGEST_BACKOFF_S = 30.0

_last: dict[str, float] = {}


def after_commit(using: str) -> None:
    """Wake the drainers once the caller's transaction has committed."""
    if settings.NOTIFY:
        transaction.on_commit(lambda: _notify(using), using=using, robust=True)


def _notify(using: str) -> None:
    now = time.monotonic()
    if now - _last.get(using, float("-inf")) < COALESCE_S:
        return
    _last[using] = now
    with connections[using].cursor() as cursor:
        # A commit that waits for no disk: there is nothing in it to lose.
        cursor.execute("SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, '')", [CHANNEL])


class Listener(threading.Thread):
    """Calls `wake` whenever something was published, on a connection of its own; comes back when that is lost."""

    def __init__(self, using: str, wake: Callable[[], None]) -> None:
        super().__init__(name="outbox-listener", daemon=True)
        self._using = using
        self._wake = wake
        self._ended = threading.Event()

    def run(self) -> None:
        backoff = 1.0
        while not self._ended.is_set():
            wrapper = connections[self._using].copy()
            try:
                wrapper.connect()
                raw = wrapper.connection
                raw.execute(f"LISTEN {CHANNEL}")
                self._wake()  # for what was published while nobody listened
                backoff = 1.0
                while not self._ended.is_set():
                    if any(True for _ in raw.notifies(timeout=0.5, stop_after=1)):
                        self._wake()
            except (DatabaseError, psycopg.Error, OSError) as error:
                logger.warning("cannot listen, and look every poll interval instead: %s", str(error).strip())
                self._ended.wait(backoff)
                backoff = min(LONGEST_BACKOFF_S, backoff * 2)
            finally:
                wrapper.close()

    def end(self) -> None:
        """Stop listening, and wait for the thread."""
        self._ended.set()
        self.join(5.0)
