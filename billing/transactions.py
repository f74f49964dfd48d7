"""A transaction under a lease, done again when another one was merely in its way."""

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import DatabaseError

from leases import Lease

logger = logging.getLogger("billing")

T = TypeVar("T")

TRIES = 5
_IN_THE_WAY = {"40001": "serialization failure", "40P01": "deadlock", "55P03": "lock not available in time"}


def under(lease: Lease, work: Callable[[], T]) -> T:
    """Run `work` in a transaction that presents `lease`, and return what it returns.

    A serialization failure, a deadlock, or a lock that was not to be had in time (a worker frozen while it held the
    number counter) rolls back and is tried again, a few times; `work` must have no effect outside the transaction.
    """
    for attempt in range(1, TRIES + 1):
        try:
            with lease.transaction():
                return work()
        except DatabaseError as error:
            cause = _IN_THE_WAY.get(getattr(error.__cause__, "sqlstate", None) or "")
            if cause is None or attempt == TRIES:
                raise
            logger.info("%s: the transaction for %s is tried again.", cause, lease.resource)
            time.sleep(random.uniform(0, 0.05 * 2**attempt))  # noqa: S311 - jitter
    raise AssertionError("unreachable")
