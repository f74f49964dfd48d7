"""The workers of one side: kept running, and struck by the schedule's faults."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from project.demo.cast import end_with_parent
from project.replay.events import EventFile
from project.replay.schedule import Fault
from project.replay.timeline import FROZEN, KILLED, THAWED
from project.replay.worker import READY

START_SECONDS = 60.0


class CrewFailed(Exception):
    """The workers could not be started; the message says where to look."""


class Crew:
    """`size` worker processes that read `queue`; one that ends, for whatever reason, is started again."""

    def __init__(self, size: int, queue: str, events: Path, *, base: Path, environment: Mapping[str, str]) -> None:
        self._queue = queue
        self._events = events
        self._base = base
        self._environment = environment
        self._mutex = threading.Lock()
        self._over = threading.Event()
        self._size = size
        self._files: list[EventFile] = []
        self._workers: list[subprocess.Popen[bytes]] = []
        self._frozen: dict[int, float] = {}
        self.freezes = self.kills = 0
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Crew":
        try:
            for number in range(self._size):
                self._files.append(EventFile(self._events, number))
                self._workers.append(self._start(number))
            deadline = time.monotonic() + START_SECONDS
            for number in range(self._size):
                while READY not in self.log(number).read_text(errors="replace"):
                    if self._workers[number].poll() is not None or time.monotonic() > deadline:
                        raise CrewFailed(f"Worker {number} did not start: look at {self.log(number)}.")
                    time.sleep(0.05)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def log(self, number: int) -> Path:
        return self._events.with_name(f"{self._events.stem}-worker-{number}.log")

    def strike(self, faults: Sequence[Fault]) -> None:
        """Begin to freeze and kill as `faults` say, counted from now; returns at once."""
        self._thread = threading.Thread(target=self._run, args=(list(faults),), name="faults", daemon=True)
        self._thread.start()

    def _run(self, faults: list[Fault]) -> None:
        began = time.monotonic()
        while not self._over.wait(0.02):
            passed = time.monotonic() - began
            while faults and faults[0].at_s <= passed:
                self._strike(faults.pop(0))
            for number in [number for number, until in self._frozen.items() if until <= time.monotonic()]:
                self._thaw(number)
            for number, worker in enumerate(self._workers):
                if worker.poll() is not None:
                    self._workers[number] = self._start(number)

    def _strike(self, fault: Fault) -> None:
        worker = self._workers[fault.worker]
        if fault.frozen_s is None:
            worker.kill()
            worker.wait()
            self._files[fault.worker].append(KILLED, pid=worker.pid)
            self.kills += 1
        elif worker.poll() is None:
            worker.send_signal(signal.SIGSTOP)
            self._files[fault.worker].append(FROZEN, pid=worker.pid)
            self._frozen[fault.worker] = time.monotonic() + fault.frozen_s
            self.freezes += 1

    def _thaw(self, number: int) -> None:
        del self._frozen[number]
        self._files[number].append(THAWED, pid=self._workers[number].pid)
        self._workers[number].send_signal(signal.SIGCONT)

    def _start(self, number: int) -> "subprocess.Popen[bytes]":
        with self.log(number).open("ab") as log:
            words = [sys.executable, "-m", "project.replay.worker", str(number), self._queue, str(self._events)]
            return subprocess.Popen(  # noqa: S603 - our own words
                # Not asked to stop: without its Redis, which ends too, a worker takes half a minute to give up.
                end_with_parent(words, signal.SIGKILL),
                cwd=self._base,
                env={**os.environ, **self._environment, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def is_struck(self) -> bool:
        """Whether some worker is frozen now."""
        return bool(self._frozen)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """End all of them."""
        self._over.set()
        if self._thread:
            self._thread.join()
        for worker in self._workers:
            worker.kill()
            worker.wait()
        for file in self._files:
            file.close()
