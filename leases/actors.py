"""Leases around Dramatiq actors."""

import functools
import inspect
import logging
import random
from collections.abc import Callable
from datetime import timedelta
from typing import ParamSpec, TypeVar

import dramatiq
from dramatiq.middleware import CurrentMessage

from leases.conf import conf
from leases.errors import LeaseBusy, LeaseLost, LeaseUnavailable, StaleToken
from leases.holding import hold

logger = logging.getLogger("leases")

P = ParamSpec("P")
R = TypeVar("R")

#: Message option that counts how often a job lost its lease.
_LOSSES = "leases_losses"


def leased(
    template: str, *, ttl: timedelta | None = None, linger: timedelta = timedelta(0), using: str = "default"
) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
    """Have an actor run only under the lease on the resource that `template` names by its arguments.

        @dramatiq.actor
        @leased("customer:{customer_id}")
        def invoice_customer(customer_id: int, period: str) -> None: ...

    While another holder has the resource, and after the lease was lost, the message goes back to its queue with a
    jittered delay; that is no failure and uses up no retries. The delay doubles with each loss. Called outside a
    worker, the errors of `hold()` are raised. The broker needs Dramatiq's CurrentMessage middleware.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R | None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            try:
                with hold(template.format(**bound.arguments), ttl=ttl, linger=linger, using=using):
                    return function(*args, **kwargs)
            except (LeaseBusy, LeaseUnavailable) as error:
                _put_back(error, lost=False)
            except (LeaseLost, StaleToken) as error:
                _put_back(error, lost=True)
            return None

        return run

    return decorate


def _put_back(error: Exception, *, lost: bool) -> None:
    message = CurrentMessage.get_current_message()
    if message is None:
        raise error
    losses = int(message.options.get(_LOSSES, 0)) + lost
    delay: timedelta = min(conf.RETRY_DELAY * 2**losses, conf.MAX_RETRY_DELAY) * random.uniform(0.5, 1.5)  # noqa: S311
    broker = dramatiq.get_broker()
    # If the process ends between this and the acknowledgement there are two messages, which the lease tells apart.
    broker.enqueue(message.copy(options={_LOSSES: losses}), delay=round(delay / timedelta(milliseconds=1)))
    logger.info(
        "Back to the queue for %.1f s: %s",
        delay.total_seconds(),
        error,
        extra={"event": "job.put_back", "message_id": message.message_id},
    )
