"""As whom PostgreSQL runs: it refuses root, so root lends it an unprivileged user that exists already."""

import os
import pwd
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from .errors import Unreachable

PRIVATE_PARENT = Path("/var/tmp")  # noqa: S108 - the folder made in it has a random name and is closed to others


class Identity(TypedDict, total=False):
    """The part of `subprocess.Popen`'s arguments that says as whom to run."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True)
class Account:
    """A user of the machine."""

    name: str
    uid: int
    gid: int

    @property
    def identity(self) -> Identity:
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def can_run(self, *command: str | Path) -> bool:
        """Say whether this user can run `command`: folders, modes, libraries and all."""
        return _succeeds([str(part) for part in command], self)

    def can_enter(self, folder: Path) -> bool:
        """Say whether this user can reach `folder`."""
        return _succeeds(["/bin/sh", "-c", 'cd "$1"', "sh", str(folder)], self)


def postgres_account() -> Account | None:
    """Return the user PostgreSQL is to run as, or None for the one we are: only root needs another."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise Unreachable(
        "PostgreSQL does not run as root, and neither a user postgres nor nobody exists: run as yourself."
    )


def make_private_folder(account: Account | None) -> Path:
    """Create a folder that only we and `account` can enter, and that no mode of the user's folders closes."""
    folder = Path(tempfile.mkdtemp(prefix="invoice-once-", dir=PRIVATE_PARENT))
    if account:
        os.chown(folder, -1, account.gid)
        folder.chmod(0o750)
    return folder


def _succeeds(command: Sequence[str], account: Account) -> bool:
    try:
        completed = subprocess.run(  # noqa: S603 - our own words
            command, cwd="/", env={"LC_ALL": "C"}, stdin=subprocess.DEVNULL, capture_output=True, **account.identity
        )
    except OSError:
        return False
    return completed.returncode == 0
