"""What Dramatiq's Redis broker was seen to do, on the library's own broker (red) and on ours.

The numbers are those of docs/public-bugs.md; Dramatiq 2.2.1 was measured.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import pytest
import redis
from django.conf import settings
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import Retries
from redis.backoff import NoBackoff
from redis.retry import Retry

from leases.jobs.brokers import middleware, redis_broker
from leases.jobs.brokers.middleware import KeptRetries, UnstartedGivenBack
from leases.jobs.brokers.redis_broker import Presence, ServerTimeRedisBroker
from tests.servers.redis_server import PrivateRedis
from tests.waiting import wait_until

TIMEOUT_MS = 1500
QUEUE = "hardening"


@pytest.fixture(autouse=True)
def empty() -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(settings.BROKER_URL)
    client.flushdb()
    yield client
    client.flushdb()


def ours(**options: Any) -> ServerTimeRedisBroker:
    return ServerTimeRedisBroker(
        client=redis.Redis.from_url(settings.BROKER_URL),
        heartbeat_timeout=TIMEOUT_MS,
        maintenance_chance=1_000_000,
        **{"middleware": [Presence(0.3)], **options},
    )


def theirs(**options: Any) -> RedisBroker:
    return RedisBroker(
        client=redis.Redis.from_url(settings.BROKER_URL),
        heartbeat_timeout=TIMEOUT_MS,
        maintenance_chance=1_000_000,
        **{"middleware": [], **options},
    )


def takes_a_message(broker: RedisBroker, *, within_s: float) -> bool:
    """Say whether another worker would get a message."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if broker.do_fetch(QUEUE, 1):
            return True
        time.sleep(0.05)
    return False


class Blocking:
    """A worker with one thread whose job runs until it is let go."""

    def __init__(self, broker: RedisBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()
        self.runs = 0

        @dramatiq.actor(broker=broker, queue_name=QUEUE)
        def job() -> None:
            self.runs += 1
            self.began.set()
            self.go_on.wait(20)

        self.job = job
        monkeypatch.setattr("dramatiq.worker.DELAY_QUEUE_PREFETCH", 20)
        self.worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=100)

    def start(self, queued: int, delayed: int) -> None:
        for _ in range(delayed):
            self.job.send_with_options(delay=3_600_000)
        for _ in range(queued):
            self.job.send()
        self.worker.start()
        assert self.began.wait(10)

    def stop(self) -> None:
        self.go_on.set()
        self.worker.stop(5000)


@pytest.mark.parametrize(("make", "is_taken"), [(theirs, True), (ours, False)])
def test_worker_with_a_full_prefetch_keeps_its_message(
    make: Callable[[], RedisBroker], is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # outbox C61, D4, E2
    """A backlog of delayed messages silences a healthy worker, and its running message goes to another."""
    blocking = Blocking(make(), monkeypatch)
    blocking.start(queued=2, delayed=25)
    try:
        assert takes_a_message(theirs(), within_s=2 * TIMEOUT_MS / 1000) == is_taken
    finally:
        blocking.stop()


def test_worker_whom_redis_let_wait_for_the_time_is_not_ahead_of_it(redis_server: PrivateRedis) -> None:
    """Ahead by what it waited, it would take workers that live for dead, and give their messages to others."""
    with redis_server.client() as client:
        broker = ServerTimeRedisBroker(client=client, middleware=[])
        client.execute_command("CLIENT", "PAUSE", 300, "ALL")
        broker.server_millis()
        told_ms = broker.server_millis()
        seconds, microseconds = client.time()
    assert told_ms <= seconds * 1000 + microseconds // 1000


@pytest.mark.parametrize(("make", "is_taken"), [(theirs, True), (ours, False)])
def test_worker_whose_clock_is_slow_keeps_its_message(
    make: Callable[[], RedisBroker], is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # outbox D2, E3
    """A clock that is 61 s slow, be it set so while the worker runs, lets others take the message at once."""
    slow = make()
    slow.declare_queue(QUEUE)
    assert not slow.do_fetch(QUEUE, 1)
    right = time.time
    theirs().enqueue(dramatiq.Message(queue_name=QUEUE, actor_name="x", args=(), kwargs={}, options={}))
    with monkeypatch.context() as patch:
        patch.setattr("dramatiq.common.time", lambda: right() - 61)
        assert slow.do_fetch(QUEUE, 1)
    assert takes_a_message(theirs(), within_s=0.3) == is_taken


def test_messages_whose_fetch_was_never_answered_come_back() -> None:
    # outbox C65, D5
    """They belong to a process that lives and does not know of them."""
    broker = ours()
    broker.known[QUEUE] = set()
    for _ in range(3):
        broker.enqueue(dramatiq.Message(queue_name=QUEUE, actor_name="x", args=(), kwargs={}, options={}))
    assert len(broker.do_fetch(QUEUE, 2)) == 2  # the reply is lost
    broker.give_back_lost()
    assert broker.client.llen(f"dramatiq:{QUEUE}") == 1  # it may just be on its way
    broker.give_back_lost()
    assert broker.client.llen(f"dramatiq:{QUEUE}") == 3


def test_messages_that_are_worked_on_are_not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = ours()
    blocking = Blocking(broker, monkeypatch)
    blocking.start(queued=2, delayed=5)
    wait_until(lambda: len(broker.known.get(f"{QUEUE}.DQ", ())) == 5 and len(broker.known[QUEUE]) == 2)
    for _ in range(3):
        broker.give_back_lost()
    assert broker.client.llen(f"dramatiq:{QUEUE}") == broker.client.llen(f"dramatiq:{QUEUE}.DQ") == 0
    assert blocking.runs == 1
    blocking.stop()  # which may let the second begin


@pytest.mark.parametrize(("kind", "runs"), [(RedisBroker, False), (ServerTimeRedisBroker, True)])
def test_delayed_messages_run_after_redis_was_away_when_they_became_due(
    kind: type[RedisBroker], runs: bool, redis_server: PrivateRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    # outbox C63, D5, D8
    """The consumer's thread ended for good, and delayed messages were not run for hours."""
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 0.2)
    monkeypatch.setattr(redis_broker, "_LOST_EVERY_S", 0.2)
    monkeypatch.setattr(threading, "excepthook", lambda args: None)  # of the thread that ends for good
    client = redis.Redis.from_url(redis_server.url, retry=Retry(NoBackoff(), 0), socket_timeout=2)
    broker = kind(client=client, middleware=[Presence(0.1)] if runs else [])
    ran = threading.Event()

    @dramatiq.actor(broker=broker, queue_name=QUEUE)
    def job() -> None:
        ran.set()

    worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=100)
    worker.start()
    job.send_with_options(delay=700)
    wait_until(lambda: worker.consumers[f"{QUEUE}.DQ"].delay_queue.qsize())
    redis_server.kill()
    time.sleep(1.2)  # it becomes due while nobody is there to move it
    redis_server.restart()
    assert ran.wait(20 if runs else 4) == runs
    worker.stop(2000)


@pytest.mark.parametrize(("kind", "is_lost"), [(Retries, True), (KeptRetries, False)])
def test_retry_is_kept_while_redis_is_away(
    kind: type[Retries], is_lost: bool, redis_server: PrivateRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    # outbox C64, D7, E4
    """The retry cannot be enqueued, the error is swallowed, and the message that failed is acknowledged."""
    monkeypatch.setattr(middleware, "ENQUEUE_AGAIN_S", 0.2)
    monkeypatch.setattr("dramatiq.worker.POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.2)
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 0.2)
    client = redis.Redis.from_url(redis_server.url, retry=Retry(NoBackoff(), 0), socket_timeout=2)
    broker = ServerTimeRedisBroker(client=client, middleware=[kind(min_backoff=50, max_backoff=100)])
    runs: list[float] = []

    @dramatiq.actor(broker=broker, queue_name=QUEUE)
    def job() -> None:
        runs.append(time.monotonic())
        if len(runs) == 1:
            redis_server.kill()
            raise RuntimeError("as told")

    worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=100)
    worker.start()
    job.send()
    wait_until(lambda: len(runs) == 1)
    time.sleep(1)  # the failed message is dealt with while Redis is away
    redis_server.restart()
    if is_lost:
        with redis_server.client() as left:
            wait_until(lambda: not left.hlen(f"dramatiq:{QUEUE}.msgs"), 20)
            assert not left.hlen(f"dramatiq:{QUEUE}.DQ.msgs")
            assert not left.zcard(f"dramatiq:{QUEUE}.XQ")
        assert len(runs) == 1
    else:
        wait_until(lambda: len(runs) == 2, 30)
    worker.stop(2000)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("trouble", ["full", "replica"])
def test_redis_that_takes_no_writes_for_a_while_loses_no_acknowledgement_and_no_retry(
    trouble: str, fails: bool, redis_server: PrivateRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    # outbox D20
    """It is full, or a failover has made it a replica. What was not acknowledged ran again at the next deploy."""
    monkeypatch.setattr(middleware, "ENQUEUE_AGAIN_S", 0.2)
    monkeypatch.setattr("dramatiq.worker.POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.2)
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 0.2)
    client = redis.Redis.from_url(redis_server.url, retry=Retry(NoBackoff(), 0), socket_timeout=2)
    retries = KeptRetries(max_retries=1, min_backoff=50, max_backoff=100)
    broker = ServerTimeRedisBroker(client=client, middleware=[retries])
    runs: list[float] = []
    refused = threading.Event()

    @dramatiq.actor(broker=broker, queue_name=QUEUE)
    def job() -> None:
        runs.append(time.monotonic())
        if len(runs) == 1:
            with redis_server.client() as server:
                server.replicaof("127.0.0.1", "1") if trouble == "replica" else server.config_set("maxmemory", "1")
            if fails:
                raise RuntimeError("as told")

    dispatch = broker._dispatch

    def watched(command: str) -> Any:
        def run(*args: Any) -> Any:
            try:
                return dispatch(command)(*args)
            except redis.ResponseError:
                if command == ("enqueue" if fails else "ack"):
                    refused.set()
                raise

        return run

    monkeypatch.setattr(broker, "_dispatch", watched)
    worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=100)
    worker.start()
    job.send()
    assert refused.wait(10)
    with redis_server.client() as server:
        server.replicaof("NO", "ONE") if trouble == "replica" else server.config_set("maxmemory", "0")
        wait_until(lambda: len(runs) == 1 + fails)
        wait_until(lambda: not server.hlen(f"dramatiq:{QUEUE}.msgs") and not server.hlen(f"dramatiq:{QUEUE}.DQ.msgs"))
        assert not server.zcard(f"dramatiq:{QUEUE}.XQ")
    worker.stop(2000)


@pytest.mark.parametrize(("kind", "is_acknowledged"), [(RedisBroker, False), (ServerTimeRedisBroker, True)])
def test_acknowledgement_that_timed_out_is_sent_again(
    kind: type[RedisBroker], is_acknowledged: bool, redis_server: PrivateRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    # outbox C64, D20
    """A timeout is no connection error to redis-py: the message stays unacknowledged until the worker ends."""
    monkeypatch.setattr("dramatiq.worker.POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.2)
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 0.2)
    client = redis.Redis.from_url(redis_server.url, retry=Retry(NoBackoff(), 0), socket_timeout=0.3)
    broker = kind(client=client, middleware=[])
    answers: list[str] = []

    @dramatiq.actor(broker=broker, queue_name=QUEUE)
    def job() -> None:
        redis_server.pause()

    consumer = broker.consumer_class
    acknowledge = consumer.ack

    def ack(self: Any, message: Any) -> None:
        try:
            acknowledge(self, message)
        except Exception as error:
            answers.append(type(error).__name__)
            raise
        answers.append("yes")

    monkeypatch.setattr(consumer, "ack", ack)
    worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=100)
    worker.start()
    job.send()
    wait_until(lambda: answers)
    assert answers[0] != "yes"
    redis_server.restart()  # what the frozen server was sent is gone
    with redis_server.client() as left:
        if is_acknowledged:
            wait_until(lambda: answers[-1] == "yes")
            assert not left.hlen(f"dramatiq:{QUEUE}.msgs")
        else:
            time.sleep(1)  # five times as long as it would wait before it asked again
            assert len(answers) == 1
            assert left.hlen(f"dramatiq:{QUEUE}.msgs") == 1
    worker.stop(2000)


def test_worker_that_stops_gives_back_at_once_what_it_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    # outbox D12
    """It kept all until its running job had ended, and went on fetching."""
    broker = ours(middleware=[Presence(0.3), UnstartedGivenBack()])
    blocking = Blocking(broker, monkeypatch)
    blocking.start(queued=6, delayed=0)
    stopping = threading.Thread(target=blocking.worker.stop, args=(20_000,))
    stopping.start()
    wait_until(lambda: broker.client.llen(f"dramatiq:{QUEUE}") == 5, 3)
    time.sleep(0.5)
    assert broker.client.llen(f"dramatiq:{QUEUE}") == 5
    blocking.go_on.set()
    stopping.join(10)
    assert not stopping.is_alive()
    assert blocking.runs == 1
    assert broker.client.hlen(f"dramatiq:{QUEUE}.msgs") == 5


def test_job_that_is_cut_off_is_given_back_when_the_worker_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    # outbox C70
    broker = ours(middleware=[Presence(0.3), UnstartedGivenBack()])
    blocking = Blocking(broker, monkeypatch)
    blocking.start(queued=1, delayed=0)
    blocking.worker.stop(200)
    assert broker.client.llen(f"dramatiq:{QUEUE}") == 1
    blocking.go_on.set()


def test_second_worker_of_a_process_fetches_although_the_first_was_told_to_stop() -> None:
    broker = ours()
    ran = threading.Event()

    @dramatiq.actor(broker=broker, queue_name=QUEUE)
    def job() -> None:
        ran.set()

    for _ in range(2):
        ran.clear()
        job.send()
        worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=100)
        worker.start()
        assert ran.wait(10)
        worker.stop(5000)


def test_message_in_a_worker_is_not_overtaken_by_newer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    # outbox C66
    """Among equal ones the worker's own queue gave out any, and one could be stuck in it while others kept coming."""
    broker = ours()
    order: list[int] = []
    began, go_on = threading.Event(), threading.Event()

    @dramatiq.actor(broker=broker, queue_name=QUEUE)
    def job(number: int) -> None:
        began.set()
        go_on.wait(20)
        order.append(number)

    monkeypatch.setattr("dramatiq.worker.QUEUE_PREFETCH", 20)
    worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=100)
    worker.start()
    job.send(0)
    assert began.wait(10)
    for number in range(1, 20):
        job.send(number)
    wait_until(lambda: worker.work_queue.qsize() == 19)
    for number in range(20, 30):
        job.send(number)  # these come while the older ones are in memory
    go_on.set()
    wait_until(lambda: len(order) == 30)
    worker.stop(5000)
    assert order == list(range(30))
