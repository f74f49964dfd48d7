"""Dramatiq's Redis broker, with what was seen to go wrong in it put right.

Seen in 2.2.1, and what is done about it here:

* A worker whose prefetch is full asks for nothing, so it seems dead: a thread of its own says that it lives.
* Heartbeats are judged by the clocks of different machines: they carry the time of the Redis server.
* A timeout of Redis, or its refusal while it is full or a replica, is no connection error, and the acknowledgement is
  dropped: it is one.
* Redis away while a delayed message is due ends the consumer's thread for good: it starts over.
* What a broken connection had fetched belongs to a process that lives and forgot it: it is put back within a minute.
* A consumer that closes forgets what it had fetched and not handed out: it gives it back.
* A message that cannot be decoded ends its batch, two of them the consumer's thread for good, and no dead letter tells
  of it: it is rejected like any other.
* A worker that is told to stop goes on fetching, and keeps what it fetched until its jobs have ended: it gives all that
  was not begun back at once, and what was cut off when it leaves.
* Dead workers are looked for with a chance of 0.1 % per command, which is once in ten minutes: every few seconds.
* A command that Redis does not answer is given up, and with an acknowledgement or a retry a message is stuck or lost:
  it is tried again for half a minute, which outlasts a restart of Redis. A worker that is told to stop does not wait so
  long: what it holds stands in Redis' records, and comes back with Redis.
"""

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker, _RedisConsumer
from dramatiq.errors import ConnectionClosed, DecodeError
from dramatiq.message import Message
from dramatiq.middleware import Middleware
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.retry import Retry

from leases.clock import boottime
from leases.jobs.brokers.middleware import Unreadable
from leases.jobs.worker_shutdown import is_left

logger = logging.getLogger("leases")

#: A worker that has said nothing for this long is dead or frozen, and its messages go to others. It speaks three times
#: as often.
HEARTBEAT_TIMEOUT = timedelta(seconds=15)
#: Which commands out of a million look for dead workers. An idle worker sends about 1.3 commands a second per queue, so
#: that at 10 % a lone one looks every few seconds.
MAINTENANCE_CHANCE = 100_000
#: How often a command is tried again, which takes about half a minute; doing one twice is harmless.
_RETRIES = 12
_TIMEOUT_S = 5.0
#: How long a worker that was told to stop waits for each answer.
_LAST_TIMEOUT_S = 1.0
#: How often the time of Redis is read anew.
_CLOCK_EVERY_S = 30.0
#: How often a process looks for messages that it holds and does not know of; seen twice, they are put back.
_LOST_EVERY_S = 20.0


class Consumer(_RedisConsumer):
    """Takes messages from one queue, or from its delay queue."""

    broker: "ServerTimeRedisBroker"

    def __init__(self, broker: "ServerTimeRedisBroker", queue_name: str, prefetch: int, timeout: int) -> None:
        super().__init__(broker, queue_name, prefetch, timeout)
        self.stopping = broker.leaving.is_set() and not queue_name.endswith(".DQ")
        self.known = broker.known.setdefault(queue_name, set())
        if queue_name.endswith(".DQ"):
            self.known.clear()  # delayed messages are held in memory, and an earlier consumer's memory is gone

    def ack(self, message: Any) -> None:
        if is_left(message):
            return
        try:
            with connection_errors():
                super().ack(message)
        except ConnectionClosed as error:
            if not self.broker.leaving.is_set():
                raise
            logger.warning("%s could not be acknowledged and will be delivered again: %s", message.message_id, error)
            return
        self.known.discard(message.options["redis_message_id"])

    def nack(self, message: Any) -> None:
        if is_left(message):
            return
        try:
            with connection_errors():
                super().nack(message)
        except ConnectionClosed as error:
            if not self.broker.leaving.is_set():
                raise
            # Any other error than that one ends Dramatiq's attempts: it is delivered again.
            raise RuntimeError("Redis is away, and this worker is leaving") from error
        self.known.discard(message.options["redis_message_id"])

    def requeue(self, messages: Any) -> None:
        given_back = list(messages)
        with connection_errors():
            super().requeue(given_back)
        self.known.difference_update(message.options["redis_message_id"] for message in given_back)

    def stop_fetching(self, unstarted: list[dramatiq.MessageProxy]) -> None:
        """Fetch nothing more, and give back what no job was begun for."""
        self.stopping = True
        self.requeue(unstarted)

    def __next__(self) -> Any:
        if self.stopping:
            self.close()
            time.sleep(self.timeout / 1000)
            return None
        with connection_errors():
            try:
                message = super().__next__()
            except DecodeError as error:
                message = self._unreadable(error)
        if message is not None:
            self.known.add(message.options["redis_message_id"])
        return message

    def close(self) -> None:
        fetched = []
        for data in self.message_cache:
            try:
                if data is not None:
                    fetched.append(Message.decode(data))
            except DecodeError as error:
                logger.error("A message of %s is put back later, as it cannot be read: %s", self.queue_name, error)
        self.message_cache = []
        self.requeue(fetched)

    def _unreadable(self, error: DecodeError) -> Unreadable | None:
        space, client = self.broker.namespace, self.broker.client
        held = list(client.smembers(f"{space}:__acks__.{self.broker.broker_id}.{self.queue_name}"))
        found = client.hmget(f"{space}:{self.queue_name}.msgs", held) if held else []
        for message_id, data in zip(map(_text, held), found, strict=True):
            if data == error.data and message_id not in self.known:
                return Unreadable(self.queue_name, message_id, data, error.error)
        logger.error("A message of %s cannot be read, and this process holds it no more: %s", self.queue_name, error)
        return None


class ServerTimeRedisBroker(RedisBroker):
    """The Redis broker with heartbeats by the server's clock, consumers that forget nothing, and a patient client.

    url or client: the server; a client of your own is used as it is. middleware: default `default_middleware()`.
    heartbeat_timeout: in ms. maintenance_chance: commands out of a million. The rest as Dramatiq's.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        client: redis.Redis | None = None,
        middleware: Sequence[Middleware] | None = None,
        heartbeat_timeout: int = HEARTBEAT_TIMEOUT // timedelta(milliseconds=1),
        maintenance_chance: int = MAINTENANCE_CHANCE,
        **options: Any,
    ) -> None:
        #: Set once this process was told to stop.
        self.leaving = threading.Event()
        if middleware is None:
            from leases.jobs.brokers import default_middleware

            middleware = default_middleware()
        if not any(isinstance(one, Presence) for one in middleware):
            middleware = [Presence(heartbeat_timeout / 3000), *middleware]  # first, so that all others find it leaving
        url = url or "redis://127.0.0.1:6379/0"
        super().__init__(
            client=client or _patient_client(url, self.leaving),
            middleware=list(middleware),
            heartbeat_timeout=heartbeat_timeout,
            maintenance_chance=maintenance_chance,
            **options,
        )
        self._staying, self._leaving = self.client, client or _hasty_client(url)
        self._server_ms = 0
        self._clock_read_at = -math.inf
        #: Queue -> Redis' ids of the messages that this process fetched and works on, or will.
        self.known: dict[str, set[str]] = {}
        self._strangers: dict[str, set[str]] = {}

    @property
    def consumer_class(self) -> type[Consumer]:
        return Consumer

    def stay(self) -> None:
        """Be patient with a Redis that does not answer."""
        self.client = self._staying
        self.leaving.clear()

    def leave(self) -> None:
        """From now on, give up on whatever Redis does not answer at once."""
        self.client = self._leaving
        self.leaving.set()

    def heartbeat(self) -> None:
        """Say that this process lives."""
        self.client.zadd(f"{self.namespace}:__heartbeats__", {self.broker_id: self.server_millis()})

    def give_back_lost(self) -> None:
        """Put back what Redis says this process fetched and no consumer of it has known of twice in a row.

        The reply to a fetch can get lost after the messages were taken, and the memory of a consumer with its
        connection. No other process looks after them, because this one lives.
        """
        for queue_name, known in list(self.known.items()):
            held = self.client.smembers(f"{self.namespace}:__acks__.{self.broker_id}.{queue_name}")
            strangers = {_text(message_id) for message_id in held} - known.copy()
            lost = strangers & self._strangers.get(queue_name, set())
            self._strangers[queue_name] = strangers - lost
            if lost:
                logger.warning("Putting back %d messages of %s that a broken connection left.", len(lost), queue_name)
                self.do_requeue(queue_name, *lost)

    def give_back_all(self) -> None:
        """Put back whatever this process still holds; it is leaving."""
        for queue_name in list(self.known):
            held = self.client.smembers(f"{self.namespace}:__acks__.{self.broker_id}.{queue_name}")
            if held:
                self.do_requeue(queue_name, *held)

    def server_millis(self) -> int:
        """Return the time of the Redis server as it was read last, and what has passed since on a clock of ours.

        That one is never set: the time of day of this machine is in nothing that others judge.
        """
        now = boottime()
        if now - self._clock_read_at > _CLOCK_EVERY_S:
            seconds, microseconds = self.client.time()
            # As of the answer, for which Redis may have let us wait: one that is ahead takes those who live for dead.
            now = boottime()
            self._server_ms = seconds * 1000 + microseconds // 1000
            self._clock_read_at = now
        return self._server_ms + int((now - self._clock_read_at) * 1000)

    def _dispatch(self, command: str) -> Callable[..., Any]:
        dispatch = self.scripts["dispatch"]

        def do_dispatch(queue_name: str, *args: Any) -> Any:
            return dispatch(
                keys=[self.namespace],
                args=[
                    command,
                    self.server_millis(),
                    queue_name,
                    self.broker_id,
                    self.heartbeat_timeout,
                    self.dead_message_ttl,
                    self._should_do_maintenance(command),
                    self._max_unpack_size(),
                    *args,
                ],
                client=self.client,
            )

        return do_dispatch


class Presence(Middleware):
    """Says every few seconds that this worker process lives, also while it is too busy to fetch; gives back at its end.

    A process that is frozen says nothing, and its messages go to others: that is what heartbeats are for.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def before_worker_boot(self, broker: Any, worker: dramatiq.Worker) -> None:
        self._stop.clear()
        broker.stay()  # before its consumers look

    def after_worker_boot(self, broker: Any, worker: dramatiq.Worker) -> None:
        self._thread = threading.Thread(target=self._run, args=(broker,), name="broker-presence", daemon=True)
        self._thread.start()

    def before_worker_shutdown(self, broker: Any, worker: dramatiq.Worker) -> None:
        broker.leave()

    def after_worker_shutdown(self, broker: Any, worker: dramatiq.Worker) -> None:
        self._stop.set()
        try:
            broker.give_back_all()
        except redis.RedisError as error:
            logger.warning("What was cut off could not be given back, and is when the heartbeat is missed: %s", error)

    def _run(self, broker: ServerTimeRedisBroker) -> None:
        looked_at = time.monotonic()
        while not self._stop.wait(self._interval_s * random.uniform(0.8, 1.0)):  # noqa: S311 - jitter
            try:
                broker.heartbeat()
                if time.monotonic() - looked_at > _LOST_EVERY_S:
                    looked_at = time.monotonic()
                    broker.give_back_lost()
            except redis.RedisError as error:
                logger.warning("The heartbeat could not be sent: %s", error)


class _Patience(ExponentialWithJitterBackoff):
    """The pauses between attempts, which end when the worker is told to stop."""

    def __init__(self, leaving: threading.Event) -> None:
        super().__init__(base=0.1, cap=5)
        self._leaving = leaving

    def __deepcopy__(self, memo: object) -> "_Patience":
        return self  # each connection has a copy of its own, and all must hear of the end

    def compute(self, failures: int) -> float:
        if self._leaving.wait(super().compute(failures)):
            raise redis.ConnectionError("Redis is away, and this worker is leaving")
        return 0.0


def _patient_client(url: str, leaving: threading.Event) -> redis.Redis:
    pool = redis.ConnectionPool.from_url(
        url,
        socket_timeout=_TIMEOUT_S,
        socket_connect_timeout=_TIMEOUT_S,
        health_check_interval=30,
        retry=Retry(_Patience(leaving), _RETRIES),
        retry_on_error=[redis.ConnectionError, redis.TimeoutError],
    )
    return redis.Redis(connection_pool=pool)


def _hasty_client(url: str) -> redis.Redis:
    """Return a client that connects once more where its connection was closed, and waits for nothing else."""
    pool = redis.ConnectionPool.from_url(
        url,
        socket_timeout=_LAST_TIMEOUT_S,
        socket_connect_timeout=_LAST_TIMEOUT_S,
        retry=Retry(NoBackoff(), 1, (redis.ConnectionError,)),
    )
    return redis.Redis(connection_pool=pool)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@contextmanager
def connection_errors() -> Iterator[None]:
    """Tell Dramatiq of what Redis refuses or leaves unanswered as the one kind of error that it starts over after."""
    try:
        yield
    except redis.RedisError as error:
        raise ConnectionClosed(error) from error
