"""The app's settings: read when used, so that `override_settings` works and importing never needs them."""

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
    #: How often the watcher looks.
    WATCH_INTERVAL: timedelta = timedelta(milliseconds=500)

    def __getattribute__(self, name: str) -> Any:
        return getattr(settings, f"LEASES_{name}", object.__getattribute__(self, name))


conf = Settings()
