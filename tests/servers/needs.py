"""Leaves out the tests that need something which neither the project nor a wheel brings, and says so in one line."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAMS = "/usr/local/bin:/usr/bin:/usr/sbin"
#: Marker -> whether what it needs is here. `.ci/run` installs what a machine lacks, and runs them all.
NEEDS: dict[str, Callable[[], bool]] = {
    "pgbouncer": lambda: shutil.which("pgbouncer", path=PROGRAMS) is not None,
    "shared_data": lambda: (Path(__file__).resolve().parents[3] / "shared" / "data").is_dir(),
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
