"""Server processes: started so that they outlive us, known again with certainty, stopped one by one."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .accounts import Account

# Kept so that a child that has ended is collected, and nobody warns that it may still run: it is meant to.
_children: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True)
class ServerProcess:
    """One process, for ever: the number, which the kernel gives out again, and when the bearer of it began."""

    pid: int
    began: str

    def is_running(self) -> bool:
        """Say whether this very process still runs."""
        return began(self.pid) == self.began

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process; to nobody when it is gone, whoever has its number now."""
        if self.is_running():
            os.kill(self.pid, number)

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until the process has ended; False when it still runs after `timeout_seconds`."""
        deadline = time.monotonic() + timeout_seconds
        while self.is_running():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def start_detached(
    command: Sequence[str | Path],
    *,
    log: Path,
    directory: Path,
    environment: Mapping[str, str],
    account: Account | None = None,
) -> ServerProcess:
    """Start `command` in a session of its own: neither Ctrl-C nor the death of this process reaches it."""
    with log.open("ab") as output:
        child = subprocess.Popen(  # noqa: S603 - our own words
            [str(part) for part in command],
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **(account.identity if account else {}),
        )
    _children.append(child)
    # A child is a zombie at worst until it is polled, so its number cannot have been given to another yet.
    return ServerProcess(child.pid, began(child.pid) or "ended at once")


def began(pid: int) -> str | None:
    """Return when the process with this number began, in a form that no other process ever has; None when it ended."""
    collect_ended()
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None if Path("/proc/self/stat").exists() else _began_without_proc(pid)
    state, ticks_since_boot = fields[0], fields[19]
    if state in "ZX":
        return None
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {ticks_since_boot}"


def collect_ended() -> None:
    """Let the kernel forget the processes that this one started and that have ended."""
    for child in _children:
        child.poll()


def _began_without_proc(pid: int) -> str | None:
    command = ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)]
    answer = subprocess.run(command, capture_output=True, text=True).stdout.strip()  # noqa: S603
    state, _, start = answer.partition(" ")
    return None if not answer or state.startswith("Z") else start.strip()
