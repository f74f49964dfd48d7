"""The processes of the demonstration: started for it, and gone with it."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

START_SECONDS = 60.0
STOP_SECONDS = 15.0
PR_SET_PDEATHSIG = 1


class DidNotStart(Exception):
    """A process of the demonstration ended, or said nothing, before it was ready."""


class Cast:
    """Starts `manage.py` commands that write to files in `logs`; all of them stop when the block ends."""

    def __init__(self, base: Path, logs: Path) -> None:
        self._base = base
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Cast":
        return self

    def start(self, name: str, *words: str, env: Mapping[str, str]) -> None:
        """Start a command without waiting for it; its output goes to `name`.log."""
        with self.log(name).open("wb") as file:
            self._running[name] = subprocess.Popen(  # noqa: S603 - our own words
                end_with_parent([sys.executable, "manage.py", *words]),
                cwd=self._base,
                env={**os.environ, **env, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the demonstration, which then stops them in order.
                start_new_session=True,
            )

    def wait_for(self, name: str, pattern: str) -> str:
        """Wait until a line of a command's output matches, and return the match's last group, or all of it.

        Raises `DidNotStart` when it ends before, or takes too long.
        """
        deadline = time.monotonic() + START_SECONDS
        while True:
            ended = self._running[name].poll() is not None
            found = re.search(pattern, self.log(name).read_text(errors="replace"), re.MULTILINE)
            if found:
                return found[found.lastindex or 0]
            if ended or time.monotonic() > deadline:
                raise DidNotStart(f"{name} {'ended' if ended else 'is not ready'}: look at {self.log(name)}.")
            time.sleep(0.05)

    def log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Ask all of them to stop, the last started first, and kill what does not."""
        for process in reversed(self._running.values()):
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for process in self._running.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def end_with_parent(command: Sequence[str], ending: signal.Signals = signal.SIGTERM) -> list[str]:
    """Return a command that runs `command` and has the kernel send it `ending` when this process is killed.

    Not a preexec_fn: the fork that takes runs hooks of logging's, and a Ctrl-C that falls into one of them is swallowed
    and leaves logging locked.
    """
    if sys.platform != "linux":
        return list(command)
    # The kernel tells nothing of a death before the request, so the parent is looked for after it.
    first = (
        f"import ctypes, os, sys; ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, {ending.value}); "
        f"os.getppid() == {os.getpid()} or os._exit({128 + ending.value}); "
    )
    return [sys.executable, "-c", first + "os.execv(sys.argv[1], sys.argv[1:])", *command]
