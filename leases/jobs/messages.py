"""The broker message that a worker thread has in hand, and what becomes of it when its job cannot run now."""

import hashlib
import inspect
import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import dramatiq
from dramatiq.middleware import CurrentMessage, SkipMessage
from dramatiq.results import Results

from leases.conf import conf
from leases.jobs.brokers.middleware import KeptRetries
from leases.jobs.models import MAX_MESSAGE_ID_LENGTH

logger = logging.getLogger("leases")

#: Message option that counts how often a job lost its lease.
_LOSSES = "leases_losses"


class _Thread(threading.local):
    answered: "dramatiq.Message[Any] | None" = None


_thread = _Thread()


@contextmanager
def answering(decorated: Callable[..., Any]) -> "Iterator[dramatiq.Message[Any] | None]":
    """Give the broker message that a call of `decorated` has to answer for, None if there is none or a caller does.

    The message is that of the actor whose function `decorated` is, and it is put back once, by the outermost decorator.
    What an actor calls directly raises instead, and returns what it has to return.
    """
    message = current_message()
    if message is None or _thread.answered is message or not _is_function_of(decorated, message):
        yield None
        return
    _thread.answered = message
    try:
        yield message
    finally:
        _thread.answered = None


def _is_function_of(decorated: Callable[..., Any], message: "dramatiq.Message[Any]") -> bool:
    """Say whether the message's actor runs `decorated`, be it under further decorators."""
    actor = _broker().actors.get(message.actor_name)
    return actor is not None and inspect.unwrap(actor.fn, stop=lambda function: function is decorated) is decorated


def _broker() -> dramatiq.Broker:
    """Return the broker whose worker this thread is; outside a worker the global one."""
    own = getattr(threading.current_thread(), "broker", None)
    return own if isinstance(own, dramatiq.Broker) else dramatiq.get_broker()


def refuse_actor(decorator: str, function: object) -> None:
    """Raise TypeError if a decorator of functions is put above the actor that was made of one."""
    if isinstance(function, dramatiq.Actor):
        raise TypeError(f"{function.actor_name} is an actor already; put @{decorator} under @dramatiq.actor")


def current_message() -> "dramatiq.Message[Any] | None":
    """Return the broker message that this thread is working on, None outside a worker."""
    message: dramatiq.Message[Any] | None = CurrentMessage.get_current_message()
    return message


def current_id() -> str:
    """Return the id of the broker message in hand as our columns hold it, empty outside a worker.

    Dramatiq's own have 36 characters. Others may be anything; one that has no room is told by its hash.
    """
    message = current_message()
    if message is None:
        return ""
    text = str(message.message_id)
    if len(text) <= MAX_MESSAGE_ID_LENGTH and text.isprintable():
        return text
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def wants_result() -> bool:
    """Say whether anybody gets what the actor returns; Dramatiq warns of each result that it throws away."""
    message = current_message()
    if message is None or message.options.get("pipe_target") is not None:
        return True
    return any(isinstance(middleware, Results) for middleware in _broker().middleware)


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
    _patient(_broker()).enqueue(again, delay=round(delay / timedelta(milliseconds=1)))
    logger.info(
        "Back to the queue for %.1f s: %s",
        delay.total_seconds(),
        error,
        extra={"event": "job.put_back", "message_id": message.message_id},
    )
    if _has_consequences(message):
        message.options["store_results"] = False
        raise SkipMessage(str(error))


def _patient(broker: dramatiq.Broker) -> Any:
    """Return what enqueues like `broker`, and waits while that is away if its retries do so too."""
    return next((one.patient(broker) for one in broker.middleware if isinstance(one, KeptRetries)), broker)


def _has_consequences(message: "dramatiq.Message[Any]") -> bool:
    options = {**_broker().get_actor(message.actor_name).options, **message.options}
    return wants_result() or bool(options.get("on_success") or options.get("group_completion_uuid"))
