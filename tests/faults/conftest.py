"""Real processes that are killed or frozen at a step, and the servers they talk to."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from django.db import connection

from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
"""Seconds any single wait may take: a bound for a broken run, far above what a loaded machine needs."""


class Program:
    """One running process; `marker` appears when it reaches the step it is to be stopped at."""

    def __init__(self, process: "subprocess.Popen[str]", marker: Path, errors: Path) -> None:
        self.process = process
        self._marker = marker
        self._errors = errors

    def reached(self) -> None:
        """Wait until the step was reached and the signal has struck."""
        wait_until(self._marker.exists, PATIENCE, f"the step was not reached: {self._errors.read_text()}")
        wait_until(lambda: self.status() in ("stopped", "zombie", "gone"), PATIENCE, "the signal did not strike")

    def status(self) -> str:
        try:
            return str(psutil.Process(self.process.pid).status())
        except psutil.NoSuchProcess:
            return "gone"

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def line(self) -> dict[str, Any]:
        """Return the next line of its stdout."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, f"it ended: {self._errors.read_text()}"
        return dict(json.loads(text))

    def end(self) -> dict[str, Any]:
        """Let it run to its end and return what its last line says."""
        output, _ = self.process.communicate(input="\n", timeout=PATIENCE)
        lines = output.splitlines()
        assert lines, f"it said nothing: {self._errors.read_text()}"
        return dict(json.loads(lines[-1]))

    def killed(self) -> bool:
        """Wait for its end; return whether SIGKILL was the cause."""
        return self.process.wait(PATIENCE) == -signal.SIGKILL


@dataclass
class Programs:
    """Starts processes against the test's own database and servers."""

    environment: dict[str, str]
    directory: Path
    started: list[Program]

    def start(self, *arguments: str, fault: str = "", **environment: str) -> Program:
        """Start a program of tests/faults/program.py; `fault` is like `SIGSTOP tax.answered 2`."""
        return self._start([sys.executable, "-m", "tests.faults.program", *arguments], fault, environment)

    def manage(self, *arguments: str, fault: str = "", **environment: str) -> Program:
        """Start `manage.py` with `arguments`."""
        return self._start([sys.executable, "manage.py", *arguments], fault, environment)

    def _start(self, command: list[str], fault: str, more: dict[str, str]) -> Program:
        number = len(self.started)
        marker, errors = self.directory / f"reached-{number}", self.directory / f"stderr-{number}"
        environment = {**self.environment, **more}
        if fault:
            action, step, *nth = fault.split()
            environment |= {"FAULT_SIGNAL": action, "FAULT_STEP": step, "FAULT_MARKER": str(marker)}
            environment |= {"FAULT_NTH": nth[0]} if nth else {}
        with errors.open("w") as stderr:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        program = Program(process, marker, errors)
        self.started.append(program)
        return program


@dataclass(frozen=True)
class MailRecord:
    """What the mail server took over since the test began."""

    path: Path
    skip: int

    def envelopes(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()[self.skip :]]

    def to(self, address: str) -> int:
        """Return how many mails to `address` there are."""
        return sum(address in envelope["rcpt_tos"] for envelope in self.envelopes())


def serve(command: list[str]) -> tuple["subprocess.Popen[str]", int]:
    process = subprocess.Popen(
        [sys.executable, "manage.py", *command, "--port", "0"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline().rpartition(":")[2])


def stop(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


@pytest.fixture(scope="session")
def mail_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    path = tmp_path_factory.mktemp("mail") / "record.jsonl"
    process, port = serve(["mailserver", "--record", str(path)])
    yield port, path
    stop(process)


@pytest.fixture(scope="session")
def tax_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    path = tmp_path_factory.mktemp("tax") / "requests.jsonl"
    process, port = serve(["taxservice", "--request-log", str(path)])
    yield port, path
    stop(process)


@pytest.fixture
def mails(mail_server: tuple[int, Path]) -> MailRecord:
    _, path = mail_server
    return MailRecord(path, len(path.read_text().splitlines()))


@pytest.fixture(scope="session")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    binary = shutil.which("valkey-server") or shutil.which("redis-server")
    assert binary
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    directory = tmp_path_factory.mktemp("redis")
    process = subprocess.Popen(
        [binary, "--port", str(port), "--save", "", "--dir", str(directory), "--databases", "16"],
        stdout=subprocess.DEVNULL,
        text=True,
    )
    client = redis.Redis(port=port)

    def answers() -> bool:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False

    wait_until(answers)
    client.close()
    yield port
    stop(process)


@pytest.fixture
def redis_client(redis_port: int) -> Iterator["redis.Redis"]:
    client = redis.Redis(port=redis_port)
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def programs(
    transactional_db: None,
    redis_client: "redis.Redis",
    redis_port: int,
    mail_server: tuple[int, Path],
    tax_service: tuple[int, Path],
    tmp_path: Path,
) -> Iterator[Programs]:
    at = connection.settings_dict
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.faults.settings",
        "DATABASE_URL": f"postgresql://{at['USER']}:{at['PASSWORD']}@{at['HOST']}:{at['PORT']}/{at['NAME']}",
        "REDIS_URL": f"redis://127.0.0.1:{redis_port}/0",
        "EMAIL_HOST": "127.0.0.1",
        "EMAIL_PORT": str(mail_server[0]),
        "BILLING_TAX_URL": f"http://127.0.0.1:{tax_service[0]}",
    }
    started: list[Program] = []
    yield Programs(environment, tmp_path, started)
    for program in started:
        stop(program.process)
        if program.process.stdin:
            program.process.stdin.close()
