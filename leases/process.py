"""Which process holds a lease, and whether it is gone."""

import os
import socket
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process that is never confused with a later one of the same number.

    `started` is the kernel's start time in clock ticks since boot (proc(5), stat field 22); empty where there is none.
    """

    host: str
    pid: int
    started: str

    @classmethod
    def own(cls) -> "ProcessIdentity":
        """Return the identity of this process, which a forked child does not share."""
        return _identity(os.getpid())

    def is_gone(self) -> bool | None:
        """Say whether the process has ended; None if that cannot be known from this machine."""
        if self.host != socket.gethostname() or not self.started or not Path("/proc/self/stat").exists():
            return None
        return _started(self.pid) != self.started


@lru_cache(maxsize=1)
def _identity(pid: int) -> ProcessIdentity:
    return ProcessIdentity(socket.gethostname(), pid, _started(pid) or "")


def _started(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else fields[18]
