"""What running once costs, and whether workers that come and go lose anything.

    python -m benchmarks.once [--runs 3] [--messages 2000] [--rabbitmq amqp://guest:guest@127.0.0.1:5672/%2F]

Uses the servers of DATABASE_URL and REDIS_URL; empties what REDIS_URL names, and works in a database of its own.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlsplit

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
os.environ |= {"DEBUG": "off", "SECRET_KEY": "for-measuring-only", "ALLOWED_HOSTS": "localhost"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--messages", type=int, default=2000, help="per measurement of a rate")
    parser.add_argument("--only", choices=["cost", "scale", "rescue"], help="a part of it")
    parser.add_argument("--rabbitmq", metavar="URL", help="scale and count on RabbitMQ too")
    arguments = parser.parse_args()

    from benchmarks.measuring import database_of_its_own

    with database_of_its_own():
        measure(arguments.runs, arguments.messages, arguments.rabbitmq, arguments.only)


def measure(runs: int, messages: int, rabbitmq: str | None, only: str | None) -> None:
    from django.conf import settings

    from benchmarks import measuring

    print(measuring.machine())
    print(f"medians over {runs} runs; ours, the other, ratio\n", flush=True)
    if only in (None, "cost"):
        cost(runs, messages)
    if only in (None, "scale"):
        for name, url in {"Redis": settings.REDIS_URL, "RabbitMQ": rabbitmq}.items():
            if url:
                exactly_half(name, url, 10_000)
                for number in (signal.SIGTERM, signal.SIGKILL):
                    come_and_go(name, url, number, 2000)
    if only in (None, "rescue"):
        rescued(100)


def cost(runs: int, messages: int) -> None:
    from benchmarks.measuring import ratios
    from tests.jobs import actors

    ratios(
        "@once, first run / plain actor with the same insert, jobs per s",
        lambda: throughput(actors.stamp, messages),
        lambda: throughput(actors.plain, messages),
        at_least=0.8,
        runs=runs,
    )
    ratios(
        "second payload (done already) / first run, calls per s in one thread",
        second_payloads,
        first_runs,
        at_least=3.0,
        runs=runs,
    )


def environment(url: str) -> dict[str, str]:
    from django.db import connection

    database = quote(str(connection.settings_dict["NAME"]))
    address = urlsplit(os.environ["DATABASE_URL"])._replace(path="/" + database).geturl()
    quiet = {"LOG_LEVEL": "ERROR", "BROKER_CONSUMER_TIMEOUT_SECONDS": "4200"}
    return {**os.environ, "DATABASE_URL": address, "BROKER_URL": url, **quiet}


def start(url: str, *arguments: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.Popen(
        command, env=environment(url), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def workers(url: str, processes: int, threads: int = 2, queue: str | None = None) -> "subprocess.Popen[bytes]":
    from tests.jobs.actors import QUEUE

    return start(
        url, "rundramatiq", "--processes", str(processes), "--threads", str(threads), "--queues", queue or QUEUE
    )


def stop(process: "subprocess.Popen[bytes]", number: int = signal.SIGTERM) -> None:
    if number == signal.SIGKILL:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    process.wait(60)


@contextmanager
def broker_at(url: str) -> Iterator[Any]:
    """Give the broker, empty, and leave nothing on it."""
    import dramatiq
    from django_redis import get_redis_connection
    from dramatiq.common import dq_name, xq_name

    from project.broker import make_broker
    from tests.jobs.actors import QUEUE
    from tests.jobs.models import Effect

    get_redis_connection("leases").flushdb()
    Effect.objects.all().delete()
    broker: Any = dramatiq.get_broker() if url.startswith("redis") else make_broker(url)
    broker.declare_queue(QUEUE)
    yield broker
    if not url.startswith("redis"):
        for name in (QUEUE, dq_name(QUEUE), xq_name(QUEUE)):
            broker.channel.queue_delete(name)
        broker.close()


def wait_for(condition: Callable[[], bool], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the workers did not get there")
        time.sleep(0.05)


def throughput(actor: Any, messages: int) -> float:
    """Return how many jobs two processes end in a second, between the first and the last."""
    from django.conf import settings
    from django.db.models import Max, Min

    from tests.jobs.models import Effect

    with broker_at(settings.REDIS_URL):
        prefix = f"{time.time_ns()}"
        for number in range(messages):
            actor.send(f"{prefix}-{number}")
        running = workers(settings.REDIS_URL, 2)
        wait_for(lambda: Effect.objects.count() >= messages)
        stop(running)
        span = Effect.objects.aggregate(first=Min("done_at"), last=Max("done_at"))
    return messages / float((span["last"] - span["first"]).total_seconds())


def first_runs() -> float:
    from benchmarks.measuring import per_second
    from tests.jobs import actors

    prefix, numbers = time.time_ns(), iter(range(10**9))
    return per_second(lambda: actors.stamp.fn(f"{prefix}-{next(numbers)}"), count=1000)


def second_payloads() -> float:
    from benchmarks.measuring import per_second
    from tests.jobs import actors

    prefix, numbers = time.time_ns(), iter(range(10**9))
    for number in range(1000):
        actors.stamp.fn(f"{prefix}-{number}")
    return per_second(lambda: actors.stamp.fn(f"{prefix}-{next(numbers)}"), count=1000)


def tell(name: str, measured: object, wanted: str, ok: bool) -> None:
    print(f"{name:<72} {measured!s:>10} {'':>17}  {wanted}  {'ok' if ok else 'BROKEN'}", flush=True)


def exactly_half(name: str, url: str, messages: int) -> None:
    from tests.jobs import actors
    from tests.jobs.actors import QUEUE
    from tests.jobs.models import Effect

    with broker_at(url) as broker:
        prefix = f"{time.time_ns()}"
        for number in range(messages):
            broker.enqueue(actors.stamp.message(f"{prefix}-{number // 2}"))
        running = workers(url, 2)
        wait_for(lambda: is_done(broker, QUEUE))
        stop(running)
        effects = Effect.objects.count()
    tell(
        f"{name}: {messages} messages, half of them duplicates, 2 processes: effects",
        effects,
        f"exactly {messages // 2}",
        effects == messages // 2,
    )


def come_and_go(name: str, url: str, number: signal.Signals, messages: int) -> None:
    """Go from one process to eight and back to one in the middle of the work."""
    from tests.jobs import actors
    from tests.jobs.actors import QUEUE
    from tests.jobs.models import Effect

    with broker_at(url) as broker:
        prefix = f"{time.time_ns()}"
        for index in range(messages):
            broker.enqueue(actors.stamp.message(f"{prefix}-{index}"))
        running = [workers(url, 1)]
        wait_for(lambda: Effect.objects.count() > messages // 20)
        running += [workers(url, 1) for _ in range(7)]
        wait_for(lambda: Effect.objects.count() > messages // 3)
        for process in running[:-1]:
            stop(process, number)
        wait_for(lambda: Effect.objects.count() >= messages and is_done(broker, QUEUE))
        stop(running[-1])
        effects = Effect.objects.count()
        distinct = Effect.objects.values("name").distinct().count()
    tell(
        f"{name}: {messages} jobs, 1 -> 8 -> 1 processes with {number.name}: lost, twice",
        f"{messages - distinct}, {effects - distinct}",
        "0, 0",
        messages == distinct == effects,
    )


def is_done(broker: Any, queue: str) -> bool:
    from leases.jobs import workload

    state = workload.measure(broker=broker, queues=[queue])[0]
    if state.waiting or state.delayed:
        return False
    if state.running is not None:
        return not state.running
    time.sleep(1)  # RabbitMQ does not say what is being worked on
    return not workload.measure(broker=broker, queues=[queue])[0].waiting


def rescued(customers: int) -> None:
    """Flush the queue of a run, and see how long its items are without a message."""
    from django.conf import settings
    from django_redis import get_redis_connection

    from billing import queueing, runs
    from billing.conf import conf
    from billing.models import Customer, Item
    from billing.periods import Period

    Customer.objects.bulk_create(
        Customer(code=f"c{number}", name="Ada", email="ada@example.org", currency="EUR") for number in range(customers)
    )
    run = runs.plan(Period.parse("2026-05"))
    queueing.enqueue_run(run)
    client = get_redis_connection("leases")
    client.flushdb()
    began = time.monotonic()
    rescuer = start(settings.REDIS_URL, "rescue", "--watch")
    try:
        wait_for(lambda: Item.objects.filter(rescues__gt=0).count() == customers, 120)
        took = time.monotonic() - began
    finally:
        stop(rescuer)
    interval = conf.STALLED_AFTER.total_seconds()
    tell(
        f"queue of {customers} items flushed: all enqueued again after, s",
        f"{took:.1f}",
        f"at most 2 x {interval:.0f} s (BILLING_STALLED_AFTER)",
        took <= 2 * interval and client.llen("dramatiq:billing") == customers,
    )


if __name__ == "__main__":
    main()
