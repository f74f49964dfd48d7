"""Running something in another thread of a test, with its database connections closed afterwards."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import connections


@contextmanager
def in_thread(work: Callable[[], object], *, timeout_s: float = 20) -> Iterator[threading.Thread]:
    """Run `work` beside the body; its error, if any, is raised at the end."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    yield thread
    thread.join(timeout_s)
    assert not thread.is_alive(), "the other thread did not end"
    if errors:
        raise errors[0]
