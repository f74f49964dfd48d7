"""How much work waits, for how long, and how many workers it takes.

Depths come from the broker. How long jobs run comes from the workers, which add up what they did in Redis.
"""

import logging
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import dramatiq
from django_redis import get_redis_connection
from dramatiq.common import dq_name, xq_name
from dramatiq.errors import DecodeError
from dramatiq.middleware import Middleware
from redis.exceptions import RedisError

from leases.conf import conf

logger = logging.getLogger("leases")

#: Workers add up what they did over spans of this length; the last one or two are read.
_WINDOW_S = 300
_FLUSH_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class QueueState:
    """One queue now. Numbers that the broker cannot tell are None."""

    queue: str
    waiting: int
    delayed: int
    running: int | None
    dead: int
    oldest_age_s: float | None
    mean_run_s: float | None
    busy_workers: float
    suggested_workers: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Depth:
    waiting: int
    delayed: int
    running: int | None
    dead: int
    head_queued_ms: int | None


def measure(
    *,
    broker: dramatiq.Broker | None = None,
    queues: Iterable[str] | None = None,
    drain_within: timedelta = timedelta(minutes=5),
    assumed_run: timedelta = timedelta(seconds=1),
    least: int = 1,
    most: int = 64,
) -> list[QueueState]:
    """Return the state of each declared queue, or of `queues`.

    Suggested are as many workers (threads) as were busy lately, and those that would run what waits within
    `drain_within`, between `least` and `most`. `assumed_run` is how long a job is taken to run while none has ended.
    """
    broker = broker or dramatiq.get_broker()
    states = []
    for queue in sorted(queues or broker.get_declared_queues()):
        depth = _depth(broker, queue)
        ended, run_s, span_s, head_ms = _lately(queue, empty=depth.waiting == 0)
        mean_run_s = run_s / ended if ended else None
        busy = run_s / span_s
        wanted = busy + depth.waiting * (mean_run_s or assumed_run.total_seconds()) / drain_within.total_seconds()
        since_ms = depth.head_queued_ms if depth.head_queued_ms is not None else head_ms
        age_s: float | None = 0.0
        if depth.waiting:
            age_s = None if since_ms is None else max(0.0, time.time() - since_ms / 1000)
        states.append(
            QueueState(
                queue=queue,
                waiting=depth.waiting,
                delayed=depth.delayed,
                running=depth.running,
                dead=depth.dead,
                oldest_age_s=None if age_s is None else round(age_s, 3),
                mean_run_s=None if mean_run_s is None else round(mean_run_s, 6),
                busy_workers=round(busy, 3),
                suggested_workers=min(most, max(least, math.ceil(wanted - 1e-9))),
            )
        )
    return states


def duplicates(
    *, broker: dramatiq.Broker | None = None, queues: Iterable[str] | None = None, limit: int = 100_000
) -> list[tuple[str, str, int]] | None:
    """Return (queue, job, how many) of jobs that stand in a queue more than once, most first; None if it can't be seen.

    A job is known by its key if its actor is @once, else by its actor and arguments. RabbitMQ shows a message only to
    whom it gives it. At most `limit` messages of each queue are read.
    """
    from leases.jobs.sending import key_of  # needs models, which Measurements has to do without

    broker = broker or dramatiq.get_broker()
    client = getattr(broker, "client", None)
    if client is None:
        return None
    found = []
    for queue in sorted(queues or broker.get_declared_queues()):
        count: Counter[str] = Counter()
        for name in (queue, dq_name(queue)):
            for index, (_, data) in enumerate(client.hscan_iter(f"{_namespace(broker)}:{name}.msgs", count=1000)):
                if index >= limit:
                    break
                try:
                    message = dramatiq.Message.decode(data)
                except DecodeError:
                    count["(cannot be read)"] += 1
                else:
                    count[key_of(message, broker) or str(message)] += 1
        found += [(queue, job, number) for job, number in count.items() if number > 1]
    return sorted(found, key=lambda row: (-row[2], row[0], row[1]))


class Measurements(Middleware):
    """Adds up in Redis how many jobs each queue's workers ended and how long they ran.

    broker.add_middleware(Measurements())
    """

    def __init__(self) -> None:
        self._thread = threading.local()
        self._lock = threading.Lock()
        self._sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        self._flushed_at = time.monotonic()

    def before_enqueue(self, broker: dramatiq.Broker, message: "dramatiq.Message[Any]", delay: int | None) -> None:
        if delay is None:
            message.options["queued_at"] = round(time.time() * 1000)

    def before_process_message(self, broker: dramatiq.Broker, message: dramatiq.MessageProxy) -> None:
        self._thread.began = time.monotonic()

    def after_process_message(
        self,
        broker: dramatiq.Broker,
        message: dramatiq.MessageProxy,
        *,
        result: Any = None,
        exception: BaseException | None = None,
    ) -> None:
        ran_ms = round((time.monotonic() - self._thread.began) * 1000)
        with self._lock:
            sums = self._sums[message.queue_name]
            sums[0] += 1
            sums[1] += ran_ms
            sums[2] = max(sums[2], int(message.options.get("queued_at") or message.message_timestamp))
            if time.monotonic() - self._flushed_at < _FLUSH_EVERY_S:
                return
        self._flush()

    def before_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        self._flush()

    def after_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        self._flush()

    def _flush(self) -> None:
        with self._lock:
            sums, self._sums = self._sums, defaultdict(lambda: [0, 0, 0])
            self._flushed_at = time.monotonic()
        if not sums:
            return
        try:
            pipeline = get_redis_connection(conf.REDIS_ALIAS, write=True).pipeline(transaction=False)
            window = int(time.time()) // _WINDOW_S
            for queue, (ended, ran_ms, queued_ms) in sums.items():
                key = _window_key(queue, window)
                pipeline.hincrby(key, "ended", ended)
                pipeline.hincrby(key, "ran_ms", ran_ms)
                pipeline.expire(key, 3 * _WINDOW_S)
                pipeline.set(_head_key(queue), queued_ms)
            pipeline.execute()
        except RedisError as error:
            logger.warning("What the workers did could not be added up: %s", error)


def _depth(broker: dramatiq.Broker, queue: str) -> _Depth:
    if hasattr(broker, "client"):
        return _redis_depth(broker, queue)
    return _rabbitmq_depth(broker, queue)


def _redis_depth(broker: Any, queue: str) -> _Depth:
    space = _namespace(broker)
    pipeline = broker.client.pipeline(transaction=False)
    pipeline.llen(f"{space}:{queue}")
    pipeline.hlen(f"{space}:{queue}.msgs")
    pipeline.hlen(f"{space}:{dq_name(queue)}.msgs")
    pipeline.zcard(f"{space}:{xq_name(queue)}")
    pipeline.lindex(f"{space}:{queue}", 0)
    waiting, held, delayed, dead, head = pipeline.execute()
    queued_ms = None
    data = broker.client.hget(f"{space}:{queue}.msgs", head) if head else None
    if data:
        # A message that cannot be read has no age, and must not hide the depth.
        with suppress(DecodeError, AttributeError, TypeError, ValueError):
            message = dramatiq.Message.decode(data)
            queued_ms = int(message.options.get("queued_at") or message.message_timestamp)
    return _Depth(waiting, delayed, max(0, held - waiting), dead, queued_ms)


def _rabbitmq_depth(broker: Any, queue: str) -> _Depth:
    broker.declare_queue(queue, ensure=True)
    waiting, delayed, dead = broker.get_queue_message_counts(queue)
    return _Depth(waiting, delayed, None, dead, None)


def _lately(queue: str, *, empty: bool) -> tuple[int, float, float, int | None]:
    """Return how many jobs ended, how long they ran, over which span, and since when at most the oldest one waits.

    The oldest one that waits was queued after the one that was begun last, and after the queue was seen empty.
    """
    now = time.time()
    window = int(now) // _WINDOW_S
    try:
        client = get_redis_connection(conf.REDIS_ALIAS, write=True)
        if empty:
            client.set(_empty_key(queue), round(now * 1000))
        pipeline = client.pipeline(transaction=False)
        for number in (window - 1, window):
            pipeline.hmget(_window_key(queue, number), "ended", "ran_ms")
        pipeline.mget(_head_key(queue), _empty_key(queue))
        *windows, heads = pipeline.execute()
    except RedisError as error:
        logger.warning("What the workers did could not be read: %s", error)
        return 0, 0.0, 1.0, None
    ended = sum(int(row[0] or 0) for row in windows)
    run_s = sum(int(row[1] or 0) for row in windows) / 1000
    span_s = now - (window - (1 if windows[0][0] else 0)) * _WINDOW_S
    since = [int(head) for head in heads if head]
    return ended, run_s, max(1.0, span_s), max(since) if since else None


def _namespace(broker: Any) -> str:
    return str(broker.namespace)


def _window_key(queue: str, window: int) -> str:
    return f"workload:{queue}:{window}"


def _head_key(queue: str) -> str:
    return f"workload:{queue}:begun"


def _empty_key(queue: str) -> str:
    return f"workload:{queue}:empty"
