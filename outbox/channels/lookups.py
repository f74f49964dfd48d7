"""Looking up names with an end: the resolver takes no time limit, and may be silent for longer than a claim."""

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_running: dict[tuple[Any, ...], "Future[Any]"] = {}


def addresses(host: str, port: int, seconds: float) -> list[Any]:
    """What socket.getaddrinfo() says of a TCP port, within `seconds`.

    Raises OSError when the name is not known, and TimeoutError, which is one, when nobody said so in time.
    """
    return bounded(("addresses", host, port), lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), seconds)


def bounded(key: tuple[Any, ...], look_up: Callable[[], T], seconds: float) -> T:
    """The result of `look_up` within `seconds`; TimeoutError when it takes longer.

    A look-up cannot be ended from outside. It goes on in its own thread, and whoever asks for the same `key` meanwhile
    waits for that one, so that no more threads hang than there are names.
    """
    with _lock:
        future = _running.get(key)
        if future is None:
            future = Future()
            threading.Thread(target=_run, args=[key, look_up, future], name="look-up", daemon=True).start()
            _running[key] = future  # only once there is a thread, which may be one too many; it waits for the lock
    try:
        found: T = future.result(max(0.0, seconds))
    except TimeoutError:
        if future.done():
            raise
        raise TimeoutError(f"the look-up of {key[1]} took longer than {seconds:.1f} s") from None
    return found


def _run(key: tuple[Any, ...], look_up: Callable[[], Any], future: "Future[Any]") -> None:
    try:
        result, failure = look_up(), None
    except BaseException as error:  # whoever waits gets it
        result, failure = None, error
    with _lock:
        del _running[key]
    future.set_exception(failure) if failure else future.set_result(result)
