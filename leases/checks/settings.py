"""Checks of settings: durations that fit together, timeouts, the broker's limits; they need no server."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django_redis import get_redis_connection

from leases.conf import Settings, conf


@register("leases")
def durations(**kwargs: Any) -> list[CheckMessage]:
    """Check that the durations among the settings can hold together."""
    wrong = [
        name
        for name in ("TTL", "MAX_TTL", "MAX_HOLD", "LOCK_DELAY", "RETRY_DELAY", "MAX_RETRY_DELAY", "WATCH_INTERVAL")
        if not isinstance(getattr(conf, name), timedelta)
        or getattr(conf, name) < timedelta(0)
        or (name != "LOCK_DELAY" and not getattr(conf, name))
    ]
    if wrong:
        names = ", ".join(f"LEASES_{name}" for name in wrong)
        return [Error(f"{names}: not a positive timedelta.", hint="Write timedelta(seconds=60).", id="leases.E010")]
    if conf.TTL + conf.LOCK_DELAY > conf.MAX_TTL:
        return [
            Error(
                f"LEASES_TTL ({conf.TTL}) and LEASES_LOCK_DELAY ({conf.LOCK_DELAY}) together are longer than "
                f"LEASES_MAX_TTL ({conf.MAX_TTL}), so that nothing can be leased.",
                hint=f"Set LEASES_MAX_TTL to at least {conf.TTL + conf.LOCK_DELAY}.",
                id="leases.E011",
            )
        ]
    return []


@register("leases")
def names(**kwargs: Any) -> list[CheckMessage]:
    """Check that no setting is misspelt, since its default would hold silently."""
    known = sorted(f"LEASES_{name}" for name in vars(Settings) if name.isupper())
    return [
        Warning(
            f"{name} is not a setting of leases.",
            hint=f"Remove it, or correct its name; there are {', '.join(known)}.",
            id="leases.W018",
        )
        for name in dir(settings)
        if name.startswith("LEASES_") and name not in known
    ]


@register("leases")
def redis_client(**kwargs: Any) -> list[CheckMessage]:
    """Check that there is a client for leases, and that it gives up in time for another renewal."""
    alias = conf.REDIS_ALIAS
    caches = getattr(settings, "CACHES", {})
    if "django_redis" not in caches.get(alias, {}).get("BACKEND", ""):
        return [
            Error(
                f"CACHES[{alias!r}] is not a django-redis cache, so that nothing can be leased.",
                hint=f'Add {alias!r}: {{"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://..."}} to '
                "CACHES, or name another alias in LEASES_REDIS_ALIAS.",
                id="leases.E012",
            )
        ]
    try:
        pool = get_redis_connection(alias, write=True).connection_pool
    except ValueError as error:
        return [
            Error(
                f"CACHES[{alias!r}] has no address that can be understood, so that nothing can be leased: {error}.",
                hint=f'Set "LOCATION": "redis://host:6379/0" in CACHES[{alias!r}].',
                id="leases.E012",
            )
        ]
    connection = pool.connection_class(**pool.connection_kwargs)
    third_s = conf.TTL.total_seconds() / 3
    connect_s, answer_s = connection.socket_connect_timeout, connection.socket_timeout
    if connect_s and answer_s and connect_s + answer_s <= third_s:
        return []
    return [
        Error(
            f"Redis may take {_text(connect_s)} to connect and {_text(answer_s)} to answer, together more than a third "
            f"of LEASES_TTL ({third_s:g} s): one hanging request could cost every lease of a process.",
            hint=f'Set "SOCKET_CONNECT_TIMEOUT" and "SOCKET_TIMEOUT" in CACHES[{alias!r}]["OPTIONS"] to at most '
            f"{third_s / 2:g} each.",
            id="leases.E013",
        )
    ]


@register("leases")
def dramatiq_limits(**kwargs: Any) -> list[CheckMessage]:
    """Check that Dramatiq does not end a job whose lease still lasts, and can put messages back."""
    try:
        from dramatiq.broker import global_broker
        from dramatiq.middleware import CurrentMessage, TimeLimit
    except ImportError:
        return []
    if global_broker is None:
        return []
    leased = [actor for actor in global_broker.actors.values() if hasattr(actor.fn, "lease_template")]
    messages: list[CheckMessage] = []
    if leased and not any(isinstance(one, CurrentMessage) for one in global_broker.middleware):
        messages.append(
            Error(
                "The broker lacks Dramatiq's CurrentMessage middleware, without which a leased job that finds its "
                "resource busy fails instead of going back to its queue.",
                hint="Call broker.add_middleware(dramatiq.middleware.CurrentMessage()).",
                id="leases.E015",
            )
        )
    for one in global_broker.middleware:
        if isinstance(one, TimeLimit):
            messages += _time_limits(leased, one.time_limit)
    return messages


def _time_limits(leased: list[Any], limit_ms: float) -> Iterator[CheckMessage]:
    for actor in leased:
        own_ms = actor.options.get("time_limit", limit_ms)
        if own_ms < conf.MAX_HOLD / timedelta(milliseconds=1):
            yield Error(
                f"Dramatiq ends {actor.actor_name} after {own_ms / 1000:g} s, its lease may last {conf.MAX_HOLD} "
                "(LEASES_MAX_HOLD).",
                hint=f"Set time_limit={round(conf.MAX_HOLD / timedelta(milliseconds=1))} or more for it or in the "
                "TimeLimit middleware, or lower LEASES_MAX_HOLD.",
                obj=actor.actor_name,
                id="leases.E014",
            )


@register("leases")
def atomic_requests(**kwargs: Any) -> list[CheckMessage]:
    """Say what ATOMIC_REQUESTS means for views that take leases."""
    return [
        Warning(
            f"DATABASES[{alias!r}] has ATOMIC_REQUESTS: a view that calls hold() raises InsideTransaction.",
            hint="Decorate such views with @transaction.non_atomic_requests, or lease in a job; if none does, add "
            '"leases.W016" to SILENCED_SYSTEM_CHECKS.',
            obj=alias,
            id="leases.W016",
        )
        for alias, options in settings.DATABASES.items()
        if options.get("ATOMIC_REQUESTS")
    ]


@register("leases")
def trigger_app(**kwargs: Any) -> list[CheckMessage]:
    """Check that the app is there which puts the triggers of fenced models into migrations."""
    if apps.is_installed("pgtrigger"):
        return []
    return [
        Error(
            "pgtrigger is not among INSTALLED_APPS: makemigrations leaves out the triggers of fenced models.",
            hint='Add "pgtrigger" to INSTALLED_APPS before "leases", then type: manage.py makemigrations',
            id="leases.E017",
        )
    ]


def _text(seconds: float | None) -> str:
    return "any time" if seconds is None else f"{seconds:g} s"
