"""Real processes of the project, pointed at the test's database and Redis, and killed when the test ends."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psutil
from django.db import connection

from project.devservices.processes import began
from tests.servers.scratch import Scratch
from tests.waiting import wait_until

BASE_DIR = Path(__file__).resolve().parents[2]


class RunningProcess:
    """One started command with its children: they are a session of their own, led by `pid`."""

    def __init__(self, title: str, popen: subprocess.Popen[bytes], output: Path) -> None:
        self.title = title
        self.pid = popen.pid
        self._popen = popen
        self._output = output

    def output(self) -> str:
        """Return what it and its children wrote so far, stdout and stderr together."""
        return self._output.read_text(errors="replace")

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """Return its log lines (JSON) so far, or only those whose `event` is `name`."""
        lines: list[dict[str, Any]] = []
        for line in self.output().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                parsed = json.loads(line)
                if isinstance(parsed, dict) and (name is None or parsed.get("event") == name):
                    lines.append(parsed)
        return lines

    def wait_for_line(self, pattern: str, timeout: float = 20.0) -> re.Match[str]:
        """Wait until a line of its output matches `pattern`, and return the match."""

        def look() -> re.Match[str] | None:
            found = re.search(pattern, self.output(), re.MULTILINE)
            if found is None and self._popen.poll() is not None:
                found = re.search(pattern, self.output(), re.MULTILINE)
                assert found, f"{self.title} ended with {self._popen.returncode} before {pattern!r}:\n{self.output()}"
            return found

        found = wait_until(look, timeout, f"{self.title} wrote no line like {pattern!r} within {timeout} s")
        assert found
        return found

    def wait_for_event(self, name: str, timeout: float = 20.0, **fields: Any) -> dict[str, Any]:
        """Wait until it logs the event `name` with these `fields`, and return the first such line."""

        def look() -> dict[str, Any] | None:
            events = self.events(name)
            return next((e for e in events if all(e.get(key) == value for key, value in fields.items())), None)

        found = wait_until(look, timeout, f"{self.title} logged no event {name} {fields} within {timeout} s")
        assert found
        return found

    def children(self) -> list[psutil.Process]:
        """Return the processes under it: for `rundramatiq` the workers."""
        try:
            found: list[psutil.Process] = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return found

    def is_running(self) -> bool:
        return self._popen.poll() is None

    def freeze(self) -> None:
        """Stop it and its children where they are (SIGSTOP), as a paused machine does."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it and its children go on (SIGCONT)."""
        self._signal_all(signal.SIGCONT)

    def terminate(self) -> None:
        """Ask it to stop (SIGTERM to it alone, as a supervisor does)."""
        if self.is_running():
            self._popen.terminate()

    def interrupt(self) -> None:
        """Press Ctrl-C: SIGINT to it and its children."""
        self._signal_all(signal.SIGINT)

    def kill(self) -> None:
        """Kill it and its children at once (SIGKILL), and wait until they are gone."""
        under_it = self.children()
        self._signal_all(signal.SIGKILL)
        for child in under_it:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self._popen.wait(10)
        psutil.wait_procs(under_it, timeout=10)

    def wait(self, timeout: float = 20.0) -> int:
        """Wait until it has ended and return its exit code (negative: the signal that killed it)."""
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.title} still runs after {timeout} s:\n{self.output()}") from None

    def _signal_all(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class Processes:
    """Starts commands whose environment names the TEST database and the test's Redis; ends them all in `close()`."""

    def __init__(self, scratch: Scratch, folder: Path) -> None:
        self._scratch = scratch
        self._folder = folder
        self.started: list[RunningProcess] = []

    @property
    def environment(self) -> dict[str, str]:
        """What every process gets: this run's environment, the test database, JSON log lines as they come."""
        database = str(connection.settings_dict["NAME"])
        url = urlsplit(os.environ["DATABASE_URL"])._replace(path="/" + quote(database))
        return {**os.environ, "DATABASE_URL": url.geturl(), "LOG_FORMAT": "json", "PYTHONUNBUFFERED": "1"}

    def start(self, *arguments: object, env: Mapping[str, str] | None = None) -> RunningProcess:
        """Start `manage.py ARGUMENTS`; `env` is added to the environment."""
        return self.start_python("manage.py", *arguments, env=env)

    def start_python(self, *arguments: object, env: Mapping[str, str] | None = None) -> RunningProcess:
        """Start `python ARGUMENTS` in the project's folder; `env` is added to the environment."""
        words = [str(argument) for argument in arguments]
        output = self._folder / f"process-{len(self.started)}.log"
        with output.open("wb") as file:
            popen = subprocess.Popen(
                [sys.executable, *words],
                cwd=BASE_DIR,
                env={**self.environment, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._scratch.watch(popen.pid, began(popen.pid) or "ended at once")
        process = RunningProcess(" ".join(words), popen, output)
        self.started.append(process)
        return process

    def run(self, *arguments: object, env: Mapping[str, str] | None = None, timeout: float = 60.0) -> RunningProcess:
        """Run `manage.py ARGUMENTS` to its end, which must be a success."""
        process = self.start(*arguments, env=env)
        code = process.wait(timeout)
        assert code == 0, f"{process.title} ended with {code}:\n{process.output()}"
        return process

    def close(self) -> None:
        """Kill whatever still runs."""
        for process in reversed(self.started):
            process.kill()
