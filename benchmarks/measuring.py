"""Medians over several runs, ratios within one run, and the machine they come from."""

import logging
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import django
import redis
from django.db import connection
from django_redis import get_redis_connection


@contextmanager
def database_of_its_own() -> Iterator[None]:
    """Set Django up, with a database that is made for the block, an empty Redis, and quiet logs."""
    django.setup()
    logging.disable(logging.ERROR)
    from django.test.runner import DiscoverRunner

    runner = DiscoverRunner(verbosity=0, interactive=False)
    databases = runner.setup_databases()
    try:
        get_redis_connection("leases").flushdb()
        yield
    finally:
        runner.teardown_databases(databases)


def machine() -> str:
    """Return one line that says what was measured on."""
    server = get_redis_connection("leases").info("server")
    kind = f"{server.get('server_name', 'redis')} {server.get('valkey_version', server['redis_version'])}"
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('server_version'), current_setting('fsync')")
        postgres, fsync = cursor.fetchone()
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, "
        f"Django {django.__version__}, "
        f"PostgreSQL {postgres} (fsync {fsync}), {kind}, redis-py {redis.__version__}"
    )


def per_second(work: Callable[[], object], *, count: int) -> float:
    """Return how often `work` is done in a second, over `count` calls."""
    started = time.perf_counter()
    for _ in range(count):
        work()
    return count / (time.perf_counter() - started)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def ratios(
    name: str,
    ours: Callable[[], float],
    peer: Callable[[], float],
    *,
    at_least: float | None,
    runs: int,
    faster: bool = True,
) -> None:
    """Measure both sides in turn `runs` times, and print the medians and the median of the ratios.

    Each side returns a rate; with `faster=False` a duration, of which less is better. `at_least` is None for a floor,
    which nothing is asked of.
    """
    pairs = [(ours(), peer()) for _ in range(runs)]
    ratio = statistics.median(a / b if faster else b / a for a, b in pairs)
    a, b = (statistics.median(side) for side in zip(*pairs, strict=True))
    verdict = "" if at_least is None else f"at least {at_least:.2f}  {'ok' if ratio >= at_least else 'BELOW'}"
    print(f"{name:<72} {a:>10.4g} {b:>10.4g} {ratio:>6.2f}  {verdict}".rstrip(), flush=True)


def limit(name: str, measured: Callable[[], float], *, at_most: float, runs: int) -> None:
    """Print the median duration in seconds beside the limit it should keep."""
    median = statistics.median(measured() for _ in range(runs))
    print(f"{name:<72} {median:>10.4g} s {'':>15}  at most {at_most:.2f} s  {'ok' if median <= at_most else 'BEYOND'}")
