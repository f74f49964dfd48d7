"""Leaves out the tests that need something which neither the project nor a wheel brings, and says so in one line."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

RABBITMQ_URL = os.environ.get("RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")
SHARED_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
PROGRAMS = "/usr/local/bin:/usr/bin:/usr/sbin"


def rabbitmq_is_here() -> bool:
    address = urlsplit(RABBITMQ_URL)
    try:
        with socket.create_connection((address.hostname or "", address.port or 5672), timeout=2):
            return True
    except OSError:
        return False


#: Marker -> whether what it needs is here. `.ci/run` installs what a machine lacks, and runs them all.
NEEDS: dict[str, Callable[[], bool]] = {
    "browser": lambda: shutil.which("chromium", path=PROGRAMS) is not None,
    "rabbitmq": rabbitmq_is_here,
    "pgbouncer": lambda: shutil.which("pgbouncer", path=PROGRAMS) is not None,
    "shared_data": SHARED_DATA.is_dir,
}
_left_out = pytest.StashKey[dict[str, int]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    missing = [marker for marker, is_here in NEEDS.items() if not is_here()]
    left_out: dict[str, int] = {}
    for item in list(items):
        for marker in missing:
            if item.get_closest_marker(marker):
                items.remove(item)
                left_out[marker] = left_out.get(marker, 0) + 1
                break
    config.stash[_left_out] = left_out


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    left_out = config.stash.get(_left_out, {})
    return [f"left out, for lack of {marker}: {count} tests" for marker, count in left_out.items()]
