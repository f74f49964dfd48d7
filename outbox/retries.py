"""When a message is tried again."""

import random
from datetime import timedelta

from outbox.conf import settings


def delay(attempt: int, retry_after: timedelta | None = None) -> timedelta:
    """How long to wait after the attempt with this number: full jitter, and at least what the receiver asked for.

    Anywhere between nothing and RETRY_BASE doubled per attempt, at most RETRY_CAP: messages that failed together do
    not come back together. See Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015).
    """
    most: timedelta = min(settings.RETRY_CAP, settings.RETRY_BASE * 2 ** min(attempt - 1, 30))
    jittered = most * random.random()  # noqa: S311  # spreads load, hides nothing
    return max(jittered, retry_after or timedelta(0))
