"""Which process holds a lease, and whether it is gone."""

import hashlib
import os
import socket
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process that is never confused with a later one of the same number.

    `started` is the kernel's start time in clock ticks since boot (proc(5), stat field 22), `@`, and a name for where
    process numbers mean what they mean here; empty where the kernel tells nothing of the kind.
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
        ticks, _, realm = self.started.partition("@")
        if self.host != socket.gethostname() or not ticks or realm != _realm():
            return None
        return _ticks(self.pid) != ticks


@lru_cache(maxsize=1)
def _identity(pid: int) -> ProcessIdentity:
    ticks = _ticks(pid)
    return ProcessIdentity(socket.gethostname(), pid, f"{ticks}@{_realm()}" if ticks else "")


def _realm() -> str:
    """Return a name for the running kernel and its process namespace.

    Containers and cloned machines may share a host name; number 1 is another process in each of them.
    """
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text()
        return hashlib.sha256(f"{kernel} {os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:12]
    except OSError:
        return ""


def _ticks(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else fields[18]
