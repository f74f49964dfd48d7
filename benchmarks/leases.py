"""What leases and fences cost, beside a peer or beside the same without them.

    python -m benchmarks.leases [--runs 5]

Uses the servers of DATABASE_URL and REDIS_URL; empties what REDIS_URL names, and works in a database of its own.
The peer is python-redis-lock (benchmarks/requirements.txt).
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.request import urlopen

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()

    from benchmarks.measuring import database_of_its_own

    with database_of_its_own():
        measure(arguments.runs)


def measure(runs: int) -> None:
    from benchmarks import measuring

    print(measuring.machine())
    print(f"medians over {runs} runs; ours, the other, ratio\n")
    redis_part(runs)
    whole(runs)
    renewal_round(runs)
    fenced_writes(runs)
    stopping(runs)
    takeover(runs)
    overlap(runs)


def redis_part(runs: int) -> None:
    from benchmarks.measuring import per_second, ratios
    from leases import redis_store
    from leases.clock import boottime
    from leases.keeper import keeper
    from leases.lease import Lease
    from leases.stopping import Job

    job = Job()

    def make(resource: str, token: int) -> Lease:
        ttl = timedelta(seconds=60)
        return Lease(resource, holder="a" * 32, token=token, ttl=ttl, using="default", asked_at=boottime(), job=job)

    def ours() -> None:
        granted = redis_store.acquire("bench:1", holder="a" * 32, ttl_ms=60_000, floor=1)
        assert isinstance(granted, redis_store.Granted)
        lease = make("bench:1", granted.token)
        keeper.keep(lease)
        redis_store.release("bench:1", holder="a" * 32, token=granted.token)

    ratios(
        "acquire + release a second, Redis part, renewal on / python-redis-lock",
        lambda: per_second(ours, count=2000),
        lambda: per_second(peer_lock, count=2000),
        at_least=1.5,
        runs=runs,
    )


def peer_lock() -> None:
    import redis_lock
    from django_redis import get_redis_connection

    with redis_lock.Lock(get_redis_connection("leases"), "bench", expire=60, auto_renewal=True):
        pass


def whole(runs: int) -> None:
    from django.db import connection

    from benchmarks.measuring import per_second, ratios
    from leases import hold, redis_store

    def ours() -> None:
        with hold("bench:1"):
            pass

    def least() -> None:
        granted = redis_store.acquire("bench:1", holder="a" * 32, ttl_ms=60_000, floor=1)
        assert isinstance(granted, redis_store.Granted)
        postgres.execute("UPDATE least SET token = %s", [granted.token])
        postgres.execute(
            "UPDATE least SET token = -token FROM (SELECT set_config('synchronous_commit', 'off', true)) s"
        )
        redis_store.release("bench:1", holder="a" * 32, token=granted.token)

    ratios(
        "acquire + release a second, registered and recorded / python-redis-lock",
        lambda: per_second(ours, count=1000),
        lambda: per_second(peer_lock, count=1000),
        at_least=0.5,
        runs=runs,
    )
    connection.ensure_connection()
    postgres = connection.connection
    postgres.execute("CREATE TABLE least (token bigint)")
    postgres.execute("INSERT INTO least VALUES (1)")
    ratios(
        "the least: the two scripts, and two bare UPDATEs, one of them flushed",
        lambda: per_second(least, count=1000),
        lambda: per_second(peer_lock, count=1000),
        at_least=None,
        runs=runs,
    )


def renewal_round(runs: int) -> None:
    from benchmarks.measuring import limit, seconds
    from leases import redis_store
    from leases.clock import boottime
    from leases.keeper import _BATCH, Keeper
    from leases.lease import Lease
    from leases.stopping import Job

    job, ttl = Job(), timedelta(seconds=600)
    leases = []
    for number in range(10_000):
        granted = redis_store.acquire(f"bench:{number}", holder="a" * 32, ttl_ms=600_000, floor=1)
        assert isinstance(granted, redis_store.Granted)
        leases.append(
            Lease(
                f"bench:{number}",
                holder="a" * 32,
                token=granted.token,
                ttl=ttl,
                using="default",
                asked_at=boottime(),
                job=job,
            )
        )

    def one_round() -> None:
        keeper = Keeper()
        for start in range(0, len(leases), _BATCH):
            keeper._renew(leases[start : start + _BATCH])

    limit("one renewal round of 10,000 leases, one thread", lambda: seconds(one_round), at_most=1, runs=runs)
    assert all(lease.is_held for lease in leases)


def fenced_writes(runs: int) -> None:
    from django.db import connection, transaction

    from benchmarks.measuring import per_second, ratios, seconds
    from leases import hold
    from tests.ledger.models import Account, Entry, Plain

    account = Account.objects.create(name="bench")
    one_row = "INSERT INTO {} (account_id, amount_minor, memo, token) VALUES (%s, 1, '', 1)"
    with hold(f"account:{account.pk}") as lease:

        def fenced_row() -> None:
            with lease.transaction(), connection.cursor() as cursor:
                cursor.execute(one_row.format("ledger_entry"), [account.pk])

        def plain_row() -> None:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(one_row.format("ledger_plain"), [account.pk])

        ratios(
            "one-row fenced transactions a second / plain",
            lambda: per_second(fenced_row, count=1000),
            lambda: per_second(plain_row, count=1000),
            at_least=0.75,
            runs=runs,
        )

        def bare(*statements: tuple[str, Any]) -> None:
            for statement, key in (("BEGIN", None), *statements, ("COMMIT", None)):
                connection.connection.execute(statement, key)

        lock = "SELECT token FROM leases_fence WHERE resource = %s FOR SHARE", [lease.resource]
        insert = one_row.format("ledger_plain"), [account.pk]
        ratios(
            "the least: the same in bare psycopg, the fence row locked / not",
            lambda: per_second(lambda: bare(lock, insert), count=1000),
            lambda: per_second(lambda: bare(insert), count=1000),
            at_least=None,
            runs=runs,
        )

        def many(model: Any) -> None:
            model.objects.bulk_create(
                [model(account=account, amount_minor=number, token=1) for number in range(100_000)], batch_size=5000
            )

        ratios(
            "seconds of bulk_create of 100,000 rows, fenced / plain",
            lambda: seconds(lambda: many(Entry)),
            lambda: seconds(lambda: many(Plain)),
            at_least=0.8,
            runs=runs,
            faster=False,
        )

        def insert_select(table: str) -> None:
            with lease.transaction(), connection.cursor() as cursor:
                cursor.execute(
                    f"INSERT INTO {table} (account_id, amount_minor, memo, token) "
                    "SELECT %s, number, '', 1 FROM generate_series(1, 100000) AS number",
                    [account.pk],
                )

        ratios(
            "seconds of INSERT ... SELECT of 100,000 rows, fenced / plain",
            lambda: seconds(lambda: insert_select("ledger_entry")),
            lambda: seconds(lambda: insert_select("ledger_plain")),
            at_least=0.8,
            runs=runs,
            faster=False,
        )


def stopping(runs: int) -> None:
    from benchmarks.measuring import limit
    from leases import current_lease, hold
    from leases.errors import LeaseLost
    from leases.jobs.interrupts import LeaseInterrupt, interrupted_on_loss
    from leases.models import Incident

    def stopped_after(work: Any) -> float:
        lost = LosesSoon()
        try:
            with hold("bench:stop") as lease, interrupted_on_loss(lease):
                lost(lease, Incident.Detector.RENEWAL_REFUSED)
                work()
        except (LeaseLost, LeaseInterrupt):
            return time.perf_counter() - lost.at
        raise AssertionError("the job was not stopped")

    def loop() -> None:
        while True:
            pass

    def sleep_in_sql() -> None:
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(60)")

    def call_over_http() -> None:
        with silent_server() as port, urlopen(f"http://127.0.0.1:{port}/", timeout=1):
            pass

    def call_that_the_loss_ends() -> None:
        lease = current_lease()
        assert lease
        with (
            silent_server() as port,
            socket.create_connection(("127.0.0.1", port)) as line,
            lease.interruptible(partial(line.shutdown, socket.SHUT_RDWR)),
        ):
            line.recv(1)

    limit("from loss to stop, Python loop", lambda: stopped_after(loop), at_most=0.2, runs=runs)
    limit("from loss to stop, pg_sleep", lambda: stopped_after(sleep_in_sql), at_most=0.2, runs=runs)
    limit("from loss to stop, HTTP, timeout 1 s", lambda: stopped_after(call_over_http), at_most=1, runs=runs)
    limit(
        "the same, its socket shut at the loss", lambda: stopped_after(call_that_the_loss_ends), at_most=0.2, runs=runs
    )


@contextmanager
def silent_server() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


class LosesSoon:
    """Loses a lease 0.2 s from now in another thread, and remembers when."""

    at: float

    def __call__(self, lease: Any, detector: Any) -> None:
        import threading

        def lose() -> None:
            self.at = time.perf_counter()
            lease.lose(detector)

        threading.Timer(0.2, lose).start()


HOLDER = """
import os, sys, time
import django
django.setup()
from datetime import timedelta
from leases import hold
with hold(sys.argv[1], ttl=timedelta(seconds=2)):
    print("held", flush=True)
    time.sleep(600)
"""


def takeover(runs: int) -> None:
    from benchmarks.measuring import limit
    from leases import hold

    number = 0

    def after_a_kill() -> float:
        nonlocal number
        number += 1
        with holder(f"bench:killed-{number}") as process:
            process.send_signal(signal.SIGKILL)
            killed_at = time.perf_counter()
            with hold(f"bench:killed-{number}", wait=timedelta(seconds=30)):
                return time.perf_counter() - killed_at

    limit("takeover after SIGKILL of a holder with a ttl of 2 s", after_a_kill, at_most=3, runs=runs)


def overlap(runs: int) -> None:
    import threading

    from django.db import connections

    from benchmarks.measuring import limit
    from leases import keys
    from leases.models import Incident
    from leases.watcher import Watcher

    number = 0

    def seen_after_expiry() -> float:
        nonlocal number
        number += 1
        resource = f"bench:frozen-{number}"
        with holder(resource) as process:
            process.send_signal(signal.SIGSTOP)
            while resource in keys.read([resource]):
                time.sleep(0.001)
            expired_at = time.perf_counter()
            while not Incident.objects.filter(resource=resource).exists():
                time.sleep(0.005)
            return time.perf_counter() - expired_at

    def watch() -> None:
        watcher.run()
        connections.close_all()

    watcher = Watcher()
    watching = threading.Thread(target=watch)
    watching.start()
    try:
        limit("from expiry of a frozen holder's lease to the incident", seen_after_expiry, at_most=1, runs=runs)
    finally:
        watcher.stop.set()
        watching.join()


@contextmanager
def holder(resource: str) -> Iterator[subprocess.Popen[str]]:
    from django.db import connection

    settings = connection.settings_dict
    url = f"postgresql://{settings['USER']}@{settings['HOST']}:{settings['PORT']}/{settings['NAME']}"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, resource],
        env={**os.environ, "DATABASE_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
