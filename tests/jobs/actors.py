"""Actors that worker processes of the tests run.

A file named by JOBS_GATE lets a test decide when a run goes on: it waits while the file exists.
"""

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import dramatiq
from django.db import connection
from django.utils import timezone

from leases import leased, once
from leases.jobs import NothingDone
from tests.jobs.models import Effect

PID = os.getpid
#: A queue of this test run's own: a RabbitMQ server may be shared. Worker processes inherit the name.
QUEUE = os.environ.setdefault("JOBS_QUEUE", f"jobs{os.getpid()}")


def gate() -> None:
    """Wait, at most a minute, while the test keeps the gate shut."""
    path = os.environ.get("JOBS_GATE")
    deadline = time.monotonic() + 60
    while path and Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def leave(name: str) -> None:
    """Take effect: in the database if a transaction is open, else in a file, as an effect elsewhere would."""
    Effect.objects.create(name=name, pid=PID())


def append(name: str) -> None:
    """Take effect outside the database."""
    with Path(os.environ["JOBS_FILE"]).open("a") as file:
        file.write(name + "\n")


@dramatiq.actor(queue_name=QUEUE)
def plain(name: str) -> None:
    """The red side: nothing keeps it from running again."""
    leave(name)


@dramatiq.actor(queue_name=QUEUE)
def locked(name: str) -> None:
    """The red side of the second story: `SET NX EX` around the job, `DEL` after it."""
    from django_redis import get_redis_connection

    client = get_redis_connection("leases")
    if not client.set(f"lock:{name}", "1", nx=True, ex=60):
        return
    leave(name)
    client.delete(f"lock:{name}")


@dramatiq.actor(queue_name=QUEUE)
@once("welcome:{name}")
def welcome(name: str) -> dict[str, int]:
    leave(name)
    return {"pid": PID()}


@dramatiq.actor(queue_name=QUEUE)
@once("order:{order[id]}")
def by_order(order: dict[str, Any]) -> None:
    leave(f"{order}")


@dramatiq.actor(queue_name=QUEUE)
@once("stamp:{name}")
def stamp(name: str) -> None:
    """`plain`, once."""
    leave(name)


@dramatiq.actor(queue_name=QUEUE)
@once("quick:{name}")
def quick(name: str) -> None:
    leave(name)
    time.sleep(0.001)


@dramatiq.actor(queue_name=QUEUE)
@once("slow:{name}")
def slow(name: str) -> None:
    leave(name)
    gate()


@dramatiq.actor(queue_name=QUEUE, max_retries=20, min_backoff=50, max_backoff=200)
@once("flaky:{name}")
def flaky(name: str, failures: int) -> None:
    """Fail, after the effect, as often as told."""
    leave(name)
    gate()
    with Path(os.environ["JOBS_FILE"]).open("a+") as file:
        file.write("attempt\n")
        file.seek(0)
        if len(file.readlines()) <= failures:
            raise RuntimeError("failed after the effect")


@dramatiq.actor(queue_name=QUEUE, max_retries=0)
@once("picky:{name}")
def picky(name: str) -> None:
    """Fail for good while the gate is shut."""
    if Path(os.environ["JOBS_GATE"]).exists():
        raise RuntimeError("the gate is shut")
    leave(name)


@dramatiq.actor(queue_name=QUEUE, max_retries=5, min_backoff=50, max_backoff=200)
@once("charge:{name}", on_crash="park")
def charge(name: str, fail: str = "") -> str:
    if fail == "before":
        raise NothingDone("refused")
    append(name)
    gate()
    if fail == "after":
        raise TimeoutError("no answer")
    return "charged"


@dramatiq.actor(queue_name=QUEUE, max_retries=5, min_backoff=50, max_backoff=200)
@once("index:{name}", on_crash="retry")
def index(name: str) -> None:
    append(name)
    gate()


@dramatiq.actor(queue_name=QUEUE)
@once("tick:{slot}")
def tick(slot: str) -> None:
    leave(f"tick {slot}")


def _work(name: str, seconds: float) -> None:
    began = timezone.now()
    time.sleep(seconds)
    Effect.objects.create(name=name, pid=PID(), began_at=began)


@dramatiq.actor(queue_name=QUEUE)
@leased("thing:{thing}")
def retry_later(thing: str, name: str, seconds: float = 0.0) -> None:
    _work(name, seconds)


@dramatiq.actor(queue_name=QUEUE)
@leased("thing:{thing}", on_conflict="skip")
def skip(thing: str, name: str, seconds: float = 0.0) -> None:
    _work(name, seconds)


@dramatiq.actor(queue_name=QUEUE)
@leased("thing:{thing}", on_conflict="wait", wait=timedelta(seconds=20))
def wait(thing: str, name: str, seconds: float = 0.0) -> None:
    _work(name, seconds)


@dramatiq.actor(queue_name=QUEUE, max_retries=5, min_backoff=50, max_backoff=200)
@leased("thing:{thing}", on_conflict="serial")
def serial(thing: str, name: str, seconds: float = 0.0, fail: bool = False) -> None:
    if fail:
        raise RuntimeError("as told")
    _work(name, seconds)


def effects(name: str) -> int:
    """Count how often `name` took effect."""
    return Effect.objects.filter(name=name).count()


def isolation() -> Any:
    """Return the isolation level of the open transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        return cursor.fetchone()[0]
