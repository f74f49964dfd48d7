"""Fixtures that every part of the suite shares; tests/servers/plugin.py gives the run its servers."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.servers.emptying import EmptyingTestCase
from tests.servers.plugin import SCRATCH, start_redis
from tests.servers.processes import Processes
from tests.servers.redis_server import PrivateRedis

SHOWN_CHARACTERS = 20_000

#: The files that take longest, a minute and more. Begun last, one of them would run alone while the others are done.
LONGEST = (
    "once/test_once_workers.py",
    "once/test_scaling.py",
    "once/test_policies.py",
    "faults/test_whole_run.py",
    "faults/test_billing_steps.py",
    "browser/test_admin.py",
    "outbox/test_crashes.py",
    "replay/test_replay.py",
    "billing/test_runs.py",
    "project/test_demo.py",
    "leases/test_postgres_in_trouble.py",
    "once/test_enqueue_with_commit.py",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files; without `--no-loadscope-reorder`, xdist begins with those of most tests."""
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(scope="session", autouse=True)
def quick_cleaning() -> Iterator[None]:
    """Have the tests that commit, which pytest-django makes a TransactionTestCase of, cleaned up after quickly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("django.test.TransactionTestCase", EmptyingTestCase)
        yield


@pytest.fixture
def redis_server(pytestconfig: pytest.Config, tmp_path: Path) -> Iterator[PrivateRedis]:
    """A Redis-like server of this test's own, of the family the run is about: flush, freeze, kill, restart it."""
    server = PrivateRedis(start_redis(pytestconfig.stash[SCRATCH], f"redis-{tmp_path.name}"))
    yield server
    server.stop()


@pytest.fixture
def processes(pytestconfig: pytest.Config, transactional_db: None, tmp_path: Path) -> Iterator[Processes]:
    """Starts real processes (`manage.py ...`) on the test database and Redis; all are killed when the test ends."""
    started = Processes(pytestconfig.stash[SCRATCH], tmp_path)
    yield started
    started.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the test's processes wrote when it fails."""
    report = yield
    started = getattr(item, "funcargs", {}).get("processes")
    if report.when == "call" and report.failed and isinstance(started, Processes):
        for process in started.started:
            report.sections.append((f"output of {process.title}", process.output()[-SHOWN_CHARACTERS:]))
    return report
