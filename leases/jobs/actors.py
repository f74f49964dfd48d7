"""Leases around Dramatiq actors."""

import functools
import inspect
import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal, ParamSpec, TypeVar, get_args

import dramatiq
from django.db import connections
from dramatiq.middleware import CurrentMessage, SkipMessage
from dramatiq.results import Results

from leases.conf import conf
from leases.errors import LeaseBusy, LeaseLost, LeaseUnavailable, StaleToken
from leases.holding import hold
from leases.jobs.errors import ReceiptBusy
from leases.jobs.interrupts import LeaseInterrupt, interrupted_on_loss

logger = logging.getLogger("leases")


class _Thread(threading.local):
    answered: "dramatiq.Message[Any] | None" = None


_thread = _Thread()

P = ParamSpec("P")
R = TypeVar("R")

OnConflict = Literal["retry_later", "skip", "wait", "serial"]

#: Message option that counts how often a job lost its lease.
_LOSSES = "leases_losses"


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
    linger, using: as for `hold()`. Called outside a worker, or directly by another leased actor, the errors of `hold()`
    are raised, and the actor that has the message puts it back. The broker needs Dramatiq's CurrentMessage middleware.
    """
    if on_conflict not in get_args(OnConflict):
        raise ValueError(f"on_conflict is one of {', '.join(get_args(OnConflict))}, not {on_conflict!r}")
    if (wait is not None) != (on_conflict == "wait") or (wait is not None and wait <= timedelta(0)):
        raise ValueError('on_conflict="wait" needs a positive wait, and only that policy takes one')

    def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
        if inspect.iscoroutinefunction(function):
            raise TypeError(f"{function.__qualname__} is a coroutine function; a lease belongs to one thread")
        signature = inspect.signature(function)

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R | None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            resource = template.format(**bound.arguments)
            with answering() as message:
                if message is None:
                    with hold(resource, ttl=ttl, wait=wait or timedelta(0), linger=linger, using=using):
                        return function(*args, **kwargs)
                return work(resource, message, *args, **kwargs)

        def work(resource: str, message: "dramatiq.Message[Any]", *args: P.args, **kwargs: P.kwargs) -> R | None:
            turn = None
            if on_conflict == "serial":
                from leases.jobs.turns import Turn

                turn = Turn(resource, message_id=message.message_id, using=using)
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


@contextmanager
def answering() -> "Iterator[dramatiq.Message[Any] | None]":
    """Give the broker message that the body has to answer for; None outside a worker, or if a caller does it already.

    A message is put back once, by the outermost: what it called directly raises instead, and is run again with it.
    """
    message = current_message()
    if message is None or _thread.answered is message:
        yield None
        return
    _thread.answered = message
    try:
        yield message
    finally:
        _thread.answered = None


def current_message() -> "dramatiq.Message[Any] | None":
    """Return the broker message that this thread is working on, None outside a worker."""
    message: dramatiq.Message[Any] | None = CurrentMessage.get_current_message()
    return message


def wants_result() -> bool:
    """Say whether anybody gets what the actor returns; Dramatiq warns of each result that it throws away."""
    message = current_message()
    if message is None or message.options.get("pipe_target") is not None:
        return True
    return any(isinstance(middleware, Results) for middleware in dramatiq.get_broker().middleware)


def put_back(error: BaseException, *, lost: bool = False, delay: timedelta | None = None) -> None:
    """Enqueue the current message again after a jittered delay, using up no retry; outside a worker raise `error`.

    Raises dramatiq.middleware.SkipMessage if a success of this message would have consequences: the next job of a
    pipeline, a callback, the end of its group, a result. They are those of the run that is still to come.

    If the process ends between this and the acknowledgement there are two messages, which lease and receipt tell apart.
    """
    message = current_message()
    if message is None:
        raise error
    losses = int(message.options.get(_LOSSES, 0)) + lost
    if delay is None:
        delay = min(conf.RETRY_DELAY * 2 ** min(losses, 20), conf.MAX_RETRY_DELAY)
    delay *= random.uniform(0.5, 1.5)  # noqa: S311
    again = message.copy(options={_LOSSES: losses})
    dramatiq.get_broker().enqueue(again, delay=round(delay / timedelta(milliseconds=1)))
    logger.info(
        "Back to the queue for %.1f s: %s",
        delay.total_seconds(),
        error,
        extra={"event": "job.put_back", "message_id": message.message_id},
    )
    if _has_consequences(message):
        message.options["store_results"] = False
        raise SkipMessage(str(error))


def _has_consequences(message: "dramatiq.Message[Any]") -> bool:
    options = {**dramatiq.get_broker().get_actor(message.actor_name).options, **message.options}
    return wants_result() or bool(options.get("on_success") or options.get("group_completion_uuid"))


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
