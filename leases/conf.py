"""The app's settings: read when used, so that `override_settings` works and importing never needs them."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.conf import settings


class Settings:
    """Each attribute is the default of the Django setting `LEASES_<NAME>`."""

    REDIS_ALIAS: str = "leases"
    #: How long a lease lasts without renewal; renewed every third of it.
    TTL: timedelta = timedelta(seconds=60)
    #: No ttl may be longer; a foreign key that claims to last longer is cut to it.
    MAX_TTL: timedelta = timedelta(minutes=15)
    #: A lease is not renewed beyond this: a job that hangs must not keep its resource for ever.
    MAX_HOLD: timedelta = timedelta(hours=1)
    #: How much longer than the lease its key stays after an expiry, for receivers that cannot check a token.
    LOCK_DELAY: timedelta = timedelta(0)
    #: How long a busy or abandoned job waits before it is tried again; jittered.
    RETRY_DELAY: timedelta = timedelta(seconds=5)
    #: The retry delay of a job that lost its lease doubles up to this.
    MAX_RETRY_DELAY: timedelta = timedelta(minutes=5)
    #: How far back hold times are looked at to tell whether the ttl is wearing thin.
    HEADROOM_WINDOW: timedelta = timedelta(days=7)
    #: How often the watcher looks.
    WATCH_INTERVAL: timedelta = timedelta(milliseconds=500)
    #: How long a job that may run once waits for the first run of its key to commit, before it goes back to the queue.
    RECEIPT_WAIT: timedelta = timedelta(seconds=2)
    #: How long the transaction of such a job may idle: one whose process froze gives way after this.
    RECEIPT_IDLE: timedelta = timedelta(minutes=1)
    #: How soon a job that waits for its turn looks again, per job in front of it; jittered.
    TURN_DELAY: timedelta = timedelta(milliseconds=250)
    #: A job that has not looked for this long has lost its place in the line.
    TURN_PATIENCE: timedelta = timedelta(minutes=1)
    #: What `manage.py schedule` fires: name -> {"actor", "cron" or "every", "timezone", "missed", "args", "kwargs"}.
    SCHEDULE: Mapping[str, Mapping[str, Any]] = {}
    #: A slot that is taken up later than this was missed.
    SCHEDULE_GRACE: timedelta = timedelta(minutes=1)
    #: Functions that enqueue again what the broker lost: dotted names; see leases.jobs.rescuing.
    RESCUERS: Sequence[str] = ()
    #: How long `send_once()` takes a key for pending; after it, an enqueue that the broker lost is made again.
    PENDING_TTL: timedelta = timedelta(minutes=10)

    def __getattribute__(self, name: str) -> Any:
        return getattr(settings, f"LEASES_{name}", object.__getattribute__(self, name))


conf = Settings()
