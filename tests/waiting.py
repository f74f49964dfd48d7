"""Waiting on a condition with a bound, instead of sleeping and hoping."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout: float = 10.0, message: str = "") -> T:
    """Return the first truthy answer of `condition`, asked every 20 ms for at most `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(message or f"condition did not hold within {timeout} s; last answer: {answer!r}")
        time.sleep(0.02)
