"""The Dramatiq broker: built here and set by `ProjectConfig.ready()`, before any actor is imported.

A broker is a hint: it may deliver a message twice, late or never. PostgreSQL decides what is to be done, and the
rescuer enqueues again what a broker lost.
"""

from datetime import timedelta
from urllib.parse import urlsplit

import dramatiq
import redis
from django.core.exceptions import ImproperlyConfigured
from dramatiq.middleware import CurrentMessage, Middleware, TimeLimit
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from leases.jobs import DeadLetters, LeasesGivenBack, LeaseWatcher, Measurements
from project.broker_middleware import DatabaseConnections, JobContext, KeptRetries, UnstartedGivenBack
from project.redis_broker import Presence, ServerTimeRedisBroker

# A worker that has said nothing for this long is dead or frozen, and its messages go to others. It speaks three times
# as often.
HEARTBEAT_TIMEOUT = timedelta(seconds=15)
# How much longer than a lease may last, at the most, a job may run.
TIME_LIMIT_MARGIN = timedelta(minutes=5)
# Which commands out of a million look for dead workers. An idle worker sends about 1.3 commands a second per queue: at
# the library's 0.1 % a lone worker would look once in ten minutes, at 10 % it looks every few seconds.
MAINTENANCE_CHANCE = 100_000


def make_broker(url: str, *, max_hold: timedelta = timedelta(hours=1)) -> dramatiq.Broker:
    """Return the broker that `url` names: Redis (`redis://`, `rediss://`, `unix://`) or RabbitMQ (`amqp://`, `amqps://`).

    `max_hold` is how long a job may hold its lease; no job is interrupted before that.
    """
    scheme = urlsplit(url).scheme
    if scheme in ("redis", "rediss", "unix"):
        return ServerTimeRedisBroker(
            client=_redis_client(url),
            middleware=[Presence(HEARTBEAT_TIMEOUT.total_seconds() / 3), *_middleware(max_hold)],
            heartbeat_timeout=int(HEARTBEAT_TIMEOUT.total_seconds() * 1000),
            maintenance_chance=MAINTENANCE_CHANCE,
        )
    if scheme in ("amqp", "amqps"):
        from project.rabbitmq_broker import QuorumRabbitmqBroker  # pika is only needed here

        return QuorumRabbitmqBroker(url=url, middleware=_middleware(max_hold))
    raise ImproperlyConfigured(
        f"BROKER_URL begins with {scheme!r}: redis://, rediss://, unix://, amqp:// and amqps:// are understood."
    )


def _middleware(max_hold: timedelta) -> list[Middleware]:
    """Return the middleware, in the order of its `before` hooks; `after` hooks run in the opposite order.

    Left out of Dramatiq's defaults: AgeLimit (it drops old messages), ShutdownNotifications (it raises in a job that
    may finish, and whose lease says itself when to stop), Callbacks and Pipelines (the database knows what comes next).
    Prometheus is not a default any more: its server listens on all interfaces.
    """
    return [
        JobContext(),  # first in, last out: what the others log belongs to the message too
        DatabaseConnections(),
        CurrentMessage(),
        # The lease ends a job that runs too long; this is for what hangs all the same.
        TimeLimit(time_limit=(max_hold + TIME_LIMIT_MARGIN).total_seconds() * 1000),
        # Inside the three above, so that their `after` hooks see what became of the message.
        KeptRetries(max_retries=10, min_backoff=1_000, max_backoff=300_000),
        DeadLetters(),
        UnstartedGivenBack(),
        LeasesGivenBack(),
        Measurements(),
        # One of the worker processes sees holders that are frozen, which cannot speak for themselves.
        LeaseWatcher(),
    ]


def _redis_client(url: str) -> redis.Redis:
    """Return a client that rides out a restart of Redis.

    Dramatiq acknowledges a message whose retry it could not enqueue, which loses it, and leaves one unacknowledged
    whose acknowledgement timed out; so a command is tried again for about half a minute. Doing one twice is harmless.
    """
    pool = redis.ConnectionPool.from_url(
        url,
        socket_timeout=5,
        socket_connect_timeout=5,
        health_check_interval=30,
        retry=Retry(ExponentialWithJitterBackoff(base=0.1, cap=5), 12),
        retry_on_error=[redis.ConnectionError, redis.TimeoutError],
    )
    return redis.Redis(connection_pool=pool)
