"""The same work in many threads at once, each with database connections of its own."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import connections

T = TypeVar("T")


def at_once(count: int, work: Callable[[int], T], *, timeout_s: float = 60) -> list[T]:
    """Call `work(0)` to `work(count - 1)` in threads that start together; return the results, raise the first error."""
    start = threading.Barrier(count)

    def run(number: int) -> T:
        try:
            start.wait(timeout_s)
            return work(number)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(run, number) for number in range(count)]
        return [future.result(timeout_s) for future in futures]
