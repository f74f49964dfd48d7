"""One development server: it keeps its port, is started at most once, and is stopped for certain."""

import json
import signal
import socket
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from .errors import StartFailed, StopFailed
from .processes import ServerProcess, began

START_SECONDS = 30.0
STOP_SECONDS = 20.0


class Server(ABC):
    """A server whose data, log and state lie in `home`.

    Whether a server is ours is never guessed from a port: a running process is known by its number and its start,
    and one that answers is asked which folder it serves.
    """

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals]

    def __init__(self, home: Path) -> None:
        self.home = home
        self.data = home / "data"
        self.log = home / "server.log"
        self._state_file = home / "state.json"
        self.port, self.process = self._read_state()

    @property
    @abstractmethod
    def url(self) -> str:
        """The address that clients use."""

    @abstractmethod
    def prepare(self) -> None:
        """Make the data folder where there is none."""

    @abstractmethod
    def spawn(self, port: int) -> ServerProcess:
        """Start the process on `port`; it need not answer yet."""

    @abstractmethod
    def pid_if_ours(self) -> int | None:
        """Ask whoever answers on our port which folder it serves; its process number when that is ours."""

    def is_running(self) -> bool:
        """Say whether the process that we started still runs."""
        return self.process is not None and self.process.is_running()

    def start(self) -> bool:
        """Start the server and wait until it answers; False when it ran already.

        It comes back on the port it had, or on a new one where that was taken meanwhile. Raises `StartFailed` with
        the end of its log.
        """
        if self.is_running() or self._adopt():
            return False
        self.home.mkdir(parents=True, exist_ok=True)
        self.home.chmod(0o755)
        self.prepare()
        for _ in range(5):
            if self.port is None or not _is_free(self.port):
                self.port = _free_port()
            self._write_state()
            self.process = self.spawn(self.port)
            self._write_state()
            if self._answers():
                return True
            if _is_free(self.port):
                break
        raise StartFailed(f"{self.name} did not start; the end of {self.log} says: {self._log_tail()}")

    def stop(self) -> bool:
        """Stop the process that we started and no other; False when it did not run.

        Raises `StopFailed` when it still runs after it was told to stop at once.
        """
        if not self.is_running() and not self._adopt():
            return False
        assert self.process is not None  # noqa: S101 - just seen
        # A stopped (SIGSTOP) server would keep every other signal for later.
        for number in (self.stop_signal, signal.SIGKILL):
            self.process.signal(number)
            self.process.signal(signal.SIGCONT)
            if self.process.wait(STOP_SECONDS):
                self.process = None
                self._write_state()
                return True
        raise StopFailed(f"{self.name} (process {self.process.pid}) does not stop: look at {self.log}.")

    def _adopt(self) -> bool:
        """Recognise a server of ours that was started by an `up` which died before it could write that down."""
        pid = self.pid_if_ours() if self.port else None
        start = began(pid) if pid else None
        if pid is None or start is None:
            return False
        self.process = ServerProcess(pid, start)
        self._write_state()
        return True

    def _answers(self) -> bool:
        deadline = time.monotonic() + START_SECONDS
        while self.is_running() and time.monotonic() < deadline:
            if self.pid_if_ours():
                return True
            time.sleep(0.03)
        return False

    def _log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return " / ".join(line.strip() for line in lines[-4:]) or "(nothing)"

    def _read_state(self) -> tuple[int | None, ServerProcess | None]:
        try:
            state = json.loads(self._state_file.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None, None
        process = ServerProcess(state["pid"], state["began"]) if state.get("pid") else None
        return state["port"], process

    def _write_state(self) -> None:
        state: dict[str, int | str | None] = {"port": self.port}
        if self.process:
            state |= {"pid": self.process.pid, "began": self.process.began}
        draft = self._state_file.with_suffix(".new")
        draft.write_text(json.dumps(state) + "\n")
        draft.replace(self._state_file)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the servers do: a port whose last connections still linger can be had.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
