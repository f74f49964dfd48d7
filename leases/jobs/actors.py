"""Leases around Dramatiq actors."""

import functools
import inspect
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, ParamSpec, TypeVar, get_args

import dramatiq
from django.db import connections

from leases.errors import LeaseBusy, LeaseLost, LeaseUnavailable, StaleToken
from leases.holding import hold
from leases.jobs.errors import ReceiptBusy
from leases.jobs.interrupts import LeaseInterrupt, interrupted_on_loss
from leases.jobs.keys import require_parameters
from leases.jobs.messages import answering, current_id, put_back, refuse_actor, wants_result
from leases.jobs.turns import Turn

logger = logging.getLogger("leases")


P = ParamSpec("P")
R = TypeVar("R")

OnConflict = Literal["retry_later", "skip", "wait", "serial"]


def leased(
    template: str,
    *,
    on_conflict: OnConflict = "retry_later",
    wait: timedelta | None = None,
    ttl: timedelta | None = None,
    linger: timedelta = timedelta(0),
    using: str = "default",
) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
    """Have an actor run only under the lease on the resource that `template` names by its arguments.

        @dramatiq.actor
        @leased("customer:{customer_id}")
        def invoice_customer(customer_id: int, period: str) -> None: ...

    What happens while another holder has the resource is chosen by name:

    on_conflict="retry_later": the message goes back to its queue with a jittered delay.
    "skip": the message is done; for work that the running job does anyway. Logged as `job.skipped`.
    "wait": the worker thread waits up to `wait`, then as "retry_later".
    "serial": one after another, in the order in which they first came to a worker, none left out.

    A job that loses its lease is interrupted by LeaseInterrupt, which no `except Exception` catches; lines that must
    not be cut in two go into `lease.shielded()`. Nothing of this is a failure or uses up retries. After a lost lease,
    and while Redis or the database is away, the message goes back as well; the delay doubles with each loss. ttl,
    linger, using: as for `hold()`. Called outside a worker, or directly by another actor, the errors of `hold()` are
    raised: an actor that is leased or once itself puts its own message back, any other fails and is retried. The broker
    needs Dramatiq's CurrentMessage middleware.
    """
    if not isinstance(template, str):
        raise TypeError(f'the resource of an actor is text, not {template!r:.100}; write @leased("...") with it')
    if on_conflict not in get_args(OnConflict):
        raise ValueError(f"on_conflict is one of {', '.join(get_args(OnConflict))}, not {on_conflict!r}")
    if (wait is not None) != (on_conflict == "wait") or (wait is not None and wait <= timedelta(0)):
        raise ValueError('on_conflict="wait" needs a positive wait, and only that policy takes one')

    def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
        refuse_actor("leased", function)
        if inspect.iscoroutinefunction(function):
            raise TypeError(f"{function.__qualname__} is a coroutine function; a lease belongs to one thread")
        signature = inspect.signature(function)
        require_parameters(template, function)

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R | None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            resource = template.format(**bound.arguments)
            with answering(run) as message:
                if message is None:
                    with hold(resource, ttl=ttl, wait=wait or timedelta(0), linger=linger, using=using):
                        return function(*args, **kwargs)
                outcome = work(resource, message, *args, **kwargs)
                return outcome if wants_result() else None

        def work(resource: str, message: "dramatiq.Message[Any]", *args: P.args, **kwargs: P.kwargs) -> R | None:
            turn = None
            if on_conflict == "serial":
                turn = Turn(resource, message_id=current_id(), using=using)
                if not turn.has_come():
                    return None
            try:
                with (
                    hold(resource, ttl=ttl, wait=wait or timedelta(0), linger=linger, using=using) as lease,
                    interrupted_on_loss(lease),
                ):
                    return function(*args, **kwargs)
            except LeaseBusy as error:
                if turn is not None:
                    turn.wait_on(error)
                elif on_conflict == "skip" and error.resource == resource:
                    _skip(error, message)
                else:
                    put_back(error)
            except (LeaseUnavailable, ReceiptBusy) as error:
                if turn is not None:
                    turn.keep()
                put_back(error)
            except (LeaseLost, StaleToken) as error:
                put_back(error, lost=True)
            except LeaseInterrupt as interrupt:
                # It may have landed in the middle of an exchange with the server.
                connections.close_all()
                put_back(interrupt, lost=True)
            finally:
                if turn is not None:
                    turn.end()
            return None

        vars(run)["lease_template"] = template  # tells the checks which actors are leased
        return run

    return decorate


def _skip(busy: LeaseBusy, message: "dramatiq.Message[Any]") -> None:
    logger.info(
        "Skipped: %s",
        busy,
        extra={
            "event": "job.skipped",
            "resource": busy.resource,
            "holder": busy.holder,
            "message_id": message.message_id,
        },
    )
