"""Real processes that are killed or frozen at a step, and the servers they talk to."""

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from tests.servers.plugin import SCRATCH
from tests.servers.processes import Processes, RunningProcess
from tests.servers.redis_server import PrivateRedis
from tests.waiting import wait_until

PATIENCE = 60.0
"""Seconds any single wait may take: a bound for a broken run, far above what a loaded machine needs."""


class Program:
    """One running process that is to be stopped at a step; `marker` appears when it gets there."""

    def __init__(self, process: RunningProcess, marker: Path) -> None:
        self.process = process
        self._marker = marker

    def reached(self) -> None:
        """Wait until the step was reached and the process is frozen there."""
        wait_until(
            lambda: self._marker.exists() or not self.process.is_running(),
            PATIENCE,
            f"{self.process.title} did not come to its step",
        )
        assert self._marker.exists(), f"{self.process.title} ended before its step:\n{self.process.output()}"
        wait_until(lambda: psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED, PATIENCE)

    def killed(self) -> bool:
        """Wait for its end; return whether it was killed at its step."""
        return self.process.wait(PATIENCE) == -signal.SIGKILL and self._marker.exists()

    def wake(self) -> None:
        self.process.thaw()

    def end(self) -> dict[str, Any]:
        """Let it run to its end and return what it says came of it."""
        self.process.wait(PATIENCE)
        results = self.process.events("result")
        assert results, f"{self.process.title} said nothing:\n{self.process.output()}"
        return {name: value for name, value in results[-1].items() if name != "event"}


class Programs:
    """Starts processes against the test's own database and servers."""

    def __init__(self, processes: Processes, folder: Path, environment: dict[str, str]) -> None:
        self._processes = processes
        self._folder = folder
        self.environment = environment

    def start(self, *arguments: str, fault: str = "", **environment: str) -> Program:
        """Start a program of tests/faults/program.py; `fault` is like `SIGSTOP tax.answered 2`."""
        return self._start(["-m", "tests.faults.program", *arguments], fault, environment)

    def manage(self, *arguments: str, fault: str = "", **environment: str) -> Program:
        """Start `manage.py` with `arguments`."""
        return self._start(["manage.py", *arguments], fault, environment)

    def _start(self, command: list[str], fault: str, more: dict[str, str]) -> Program:
        marker = self._folder / f"reached-{len(self._processes.started)}"
        environment = {**self.environment, **more}
        if fault:
            action, step, *nth = fault.split()
            environment |= {"FAULT_SIGNAL": action, "FAULT_STEP": step, "FAULT_MARKER": str(marker)}
            environment |= {"FAULT_NTH": nth[0]} if nth else {}
        return Program(self._processes.start_python(*command, env=environment), marker)


@dataclass(frozen=True)
class Server:
    """A simulator: the port it listens on and the file of JSON lines it keeps."""

    port: int
    file: Path

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []


@dataclass(frozen=True)
class MailRecord:
    """What the mail server took over since the test began."""

    server: Server
    skip: int

    def to(self, address: str) -> int:
        """Return how many mails to `address` there are."""
        return sum(address in envelope["rcpt_tos"] for envelope in self.server.lines()[self.skip :])


@pytest.fixture(scope="session")
def simulators(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """The mail server and the tax service, well-behaved, for the whole run."""
    folder = tmp_path_factory.mktemp("simulators")
    started = Processes(pytestconfig.stash[SCRATCH], folder)
    servers = {}
    for name, option in (("mailserver", "--record"), ("taxservice", "--request-log")):
        file = folder / f"{name}.jsonl"
        process = started.start(name, "--port", 0, option, file)
        servers[name] = Server(int(process.wait_for_line(r"listening on .*:(\d+)", PATIENCE)[1]), file)
    yield servers
    started.close()


@pytest.fixture
def mails(simulators: dict[str, Server]) -> MailRecord:
    server = simulators["mailserver"]
    return MailRecord(server, len(server.lines()))


@pytest.fixture
def redis_client(redis_server: PrivateRedis) -> Iterator["redis.Redis"]:
    with redis_server.client() as client:
        yield client


@pytest.fixture
def programs(
    processes: Processes, redis_server: PrivateRedis, simulators: dict[str, Server], tmp_path: Path
) -> Programs:
    environment = {
        "DJANGO_SETTINGS_MODULE": "tests.faults.settings",
        "LEASES_TTL_SECONDS": "2",
        "REDIS_URL": redis_server.url,
        "EMAIL_HOST": "127.0.0.1",
        "EMAIL_PORT": str(simulators["mailserver"].port),
        "BILLING_TAX_URL": f"http://127.0.0.1:{simulators['taxservice'].port}",
    }
    return Programs(processes, tmp_path, environment)
