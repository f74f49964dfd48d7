"""The folder of one test run and all that it started; both vanish with the run, however that ends."""

import shutil
import subprocess
import sys
from pathlib import Path

from project.devservices.accounts import Account, make_private_folder
from project.devservices.processes import collect_ended

PROCESSES_FILE = "processes"


class Scratch:
    """A private folder, watched by a process that cleans up as soon as this one is gone."""

    def __init__(self, account: Account | None) -> None:
        self.account = account
        self.folder = make_private_folder(account)
        self.redis_kinds: tuple[str, ...] = ("valkey", "redis")
        # In its own session, so that neither Ctrl-C nor a kill of our group reaches it. It waits on a pipe that only
        # we hold: the kernel closes it when we end.
        self._reaper = subprocess.Popen(
            [sys.executable, "-m", "tests.servers.reaper", str(self.folder)],
            cwd=Path(__file__).resolve().parents[2],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def watch(self, pid: int, began: str) -> None:
        """Have the session that this process leads killed when the run ends."""
        with (self.folder / PROCESSES_FILE).open("a") as file:
            file.write(f"{pid} {began}\n")

    def close(self) -> None:
        """Stop everything and remove the folder."""
        assert self._reaper.stdin
        self._reaper.stdin.close()
        self._reaper.wait(60)
        collect_ended()
        shutil.rmtree(self.folder, ignore_errors=True)
