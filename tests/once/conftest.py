"""What the tests of jobs share: an empty Redis, workers, and a gate that keeps jobs from going on."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django_redis import get_redis_connection

from tests.servers.processes import Processes, RunningProcess


@pytest.fixture(autouse=True)
def redis() -> Iterator[Any]:
    client = get_redis_connection("leases")
    client.flushdb()
    yield client
    client.flushdb()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file: while it exists, jobs that look for it wait."""
    return tmp_path / "gate"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where jobs take effect that is outside the database, a line each."""
    path = tmp_path / "effects"
    path.touch()
    return path


@pytest.fixture
def start_workers(processes: Processes, gate: Path, file: Path) -> Callable[..., RunningProcess]:
    """Start `rundramatiq` on the queue "jobs" and return it."""

    def start(number: int = 2, threads: int = 2, **env: str) -> RunningProcess:
        arguments = ["rundramatiq", "--processes", number, "--threads", threads, "--queues", "jobs"]
        return processes.start(*arguments, env={"JOBS_GATE": str(gate), "JOBS_FILE": str(file), **env})

    return start
