"""Not enqueueing what is done or pending already: a saving, never the guarantee."""

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dramatiq
from django_redis import get_redis_connection
from dramatiq import Actor, Message
from redis.exceptions import RedisError

from leases.conf import conf
from leases.jobs.errors import KeyTaken
from leases.jobs.models import Receipt
from leases.jobs.repeats import Once

logger = logging.getLogger("leases")


def send_once(actor: "Actor[Any, Any]", *args: Any, **kwargs: Any) -> "Message[Any] | None":
    """Enqueue a job of an actor that is `@once`, unless its key is done, parked or pending; then return None.

    It saves work and decides nothing: two callers in the same moment may both enqueue, and one job runs. A key counts
    as pending for LEASES_PENDING_TTL after it was enqueued; if Redis does not answer, the job is enqueued. Like
    `actor.send()` it publishes at once, even if an open transaction is rolled back later. Raises InvalidKey, and
    KeyTaken when another function has used the key.
    """
    return send_once_with_options(actor, args=args, kwargs=kwargs)


def send_once_with_options(
    actor: "Actor[Any, Any]", *, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None, **options: Any
) -> "Message[Any] | None":
    """Do as `send_once()`, with the options of `actor.send_with_options()`, such as `delay` in milliseconds."""
    if not hasattr(actor, "fn"):
        raise TypeError(f"{actor!r:.100} is no actor; put @dramatiq.actor above it")
    spec = once_of(actor.fn)
    if spec is None:
        raise TypeError(f"{actor.actor_name} is not @once, so nothing says which of its jobs are the same")
    delay = options.pop("delay", None)
    if isinstance(delay, timedelta):
        delay = round(delay / timedelta(milliseconds=1))
    message = actor.message_with_options(args=args, kwargs=kwargs or {}, **options)
    key = spec.key.of(*args, **(kwargs or {}))
    owner, state = Receipt.objects.using(spec.using).filter(key=key).values_list("actor", "state").first() or ("", "")
    if owner not in ("", spec.name):
        raise KeyTaken(key, actor=spec.name, owner=owner)
    if state in (Receipt.State.DONE, Receipt.State.PARKED):
        _refused(key, "it is done or parked")
        return None
    if not _mark_pending(key, spec.name, delay or 0):
        _refused(key, "it is pending")
        return None
    try:
        return actor.broker.enqueue(message, delay=delay)
    except BaseException:
        forget_pending(key)
        raise


def once_of(function: Callable[..., Any]) -> Once | None:
    """Return what `once()` was told about an actor's function, None if it is not @once."""
    spec = getattr(function, "once", None)
    return spec if isinstance(spec, Once) else None


def key_of(message: "Message[Any]", broker: dramatiq.Broker) -> str | None:
    """Return the key that a message's job would run under; None if its actor gives it none, or `broker` has none."""
    try:
        spec = once_of(broker.get_actor(message.actor_name).fn)
        return spec.key.of(*message.args, **message.kwargs) if spec else None
    except Exception:  # a template may look into the arguments, and they may be anything
        return None


def forget_pending(key: str) -> None:
    """Let the key be enqueued again at once."""
    try:
        get_redis_connection(conf.REDIS_ALIAS, write=True).delete(_pending(key))
    except RedisError as error:
        logger.warning("The pending mark of %s stays for %s: %s", key, conf.PENDING_TTL, error)


def _mark_pending(key: str, function: str, delay_ms: int) -> bool:
    """Mark the key; False if it is pending for this function. Of two that share it, a worker refuses one."""
    ttl_ms = delay_ms + round(conf.PENDING_TTL / timedelta(milliseconds=1))
    try:
        client = get_redis_connection(conf.REDIS_ALIAS, write=True)
        if client.set(_pending(key), function, nx=True, px=ttl_ms):
            return True
        return client.get(_pending(key)) not in (function, function.encode())
    except RedisError as error:
        logger.warning("Enqueueing %s without knowing whether it is pending: %s", key, error)
        return True


def _pending(key: str) -> str:
    return f"pending:{key}"


def _refused(key: str, why: str) -> None:
    logger.info("Not enqueued: %s, %s.", key, why, extra={"event": "job.not_enqueued", "key": key})
