"""Dramatiq's brokers, with what was seen to go wrong in them put right, for any Django project.

    dramatiq.set_broker(make_broker("redis://127.0.0.1:6379/0"))

A broker is a hint all the same: it may deliver a message twice, late or never.

    redis_broker      ServerTimeRedisBroker
    rabbitmq_broker   QuorumRabbitmqBroker
    middleware        what both need around jobs
"""

from collections.abc import Sequence
from datetime import timedelta
from urllib.parse import urlsplit

import dramatiq
from django.core.exceptions import ImproperlyConfigured
from dramatiq.middleware import CurrentMessage, Middleware, TimeLimit

from leases.conf import conf
from leases.jobs import DeadLetters, LeasesGivenBack, LeaseWatcher, Measurements
from leases.jobs.brokers.middleware import DatabaseConnections, KeptRetries, UnstartedGivenBack

#: How much longer than LEASES_MAX_HOLD, at the most, a job may run.
TIME_LIMIT_MARGIN = timedelta(minutes=5)


def make_broker(url: str, *, first: Sequence[Middleware] = ()) -> dramatiq.Broker:
    """Return the broker that `url` names: Redis (`redis://`, `rediss://`, `unix://`) or RabbitMQ (`amqp://`, `amqps://`).

    first: middleware of your own, put before `default_middleware()`; add what shall come after it with
    `add_middleware()`. Raises ImproperlyConfigured for any other URL.
    """
    middleware = [*first, *default_middleware()]
    scheme = urlsplit(url).scheme
    if scheme in ("redis", "rediss", "unix"):
        from leases.jobs.brokers.redis_broker import ServerTimeRedisBroker

        return ServerTimeRedisBroker(url=url, middleware=middleware)
    if scheme in ("amqp", "amqps"):
        from leases.jobs.brokers.rabbitmq_broker import QuorumRabbitmqBroker  # pika is only needed here

        return QuorumRabbitmqBroker(url=url, middleware=middleware)
    raise ImproperlyConfigured(
        f"The broker's URL begins with {scheme!r}: redis://, rediss://, unix://, amqp:// and amqps:// are understood."
    )


def default_middleware() -> list[Middleware]:
    """Return the middleware, in the order of its `before` hooks; `after` hooks run in the opposite order.

    Left out of Dramatiq's defaults: AgeLimit (it drops old messages), ShutdownNotifications (it raises in a job that
    may finish, and whose lease says itself when to stop), Callbacks, Pipelines and Retries (KeptRetries is in its
    place).
    """
    return [
        DatabaseConnections(),
        CurrentMessage(),
        # The lease ends a job that runs too long; this is for what hangs all the same.
        TimeLimit(time_limit=(conf.MAX_HOLD + TIME_LIMIT_MARGIN).total_seconds() * 1000),
        # Inside the three above, so that their `after` hooks see what became of the message.
        KeptRetries(max_retries=10, min_backoff=1_000, max_backoff=300_000),
        DeadLetters(),
        UnstartedGivenBack(),
        LeasesGivenBack(),
        Measurements(),
        # One of the worker processes sees holders that are frozen, which cannot speak for themselves.
        LeaseWatcher(),
    ]
