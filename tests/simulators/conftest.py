"""Simulators as real processes."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"
Start = Callable[..., tuple["subprocess.Popen[str]", int]]


@pytest.fixture
def simulator() -> Iterator[Start]:
    """Start `manage.py NAME --port 0 OPTIONS` and return its process and port; stopped when the test ends."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str, *options: str) -> tuple["subprocess.Popen[str]", int]:
        process = subprocess.Popen(
            [sys.executable, str(MANAGE), name, "--port", "0", *options], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on 127.0.0.1:"), line
        return process, int(line.rpartition(":")[2])

    yield start
    for process in started:
        process.kill()
        process.communicate()
