"""A checkout of its own for a test that starts and stops real development servers."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from project.devservices.checkout import Checkout
from project.devservices.server import Server

BASE_DIR = Path(__file__).resolve().parents[2]
CODE = ("manage.py", "project", "leases", "outbox", "billing")


class CheckoutCopy:
    """The project's code in another folder, with no environment but what a test gives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.local = folder / ".local"
        for name in CODE:
            source = BASE_DIR / name
            if source.is_dir():
                shutil.copytree(source, folder / name)
            else:
                shutil.copy(source, folder / name)

    def home(self, server: str) -> Path:
        """Return the folder of a server's data and state: in `.local/`, or in the private folder that it names."""
        private = self.local / "private"
        return (Path(private.read_text().strip()) if private.exists() else self.local) / server

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "manage.py", *arguments]

    def environment(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "DEBUG": "on", **(env or {})}

    def manage(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run `manage.py ARGUMENTS` to its end."""
        return subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment(env),
            capture_output=True,
            text=True,
            timeout=60,
        )

    def up(self) -> dict[str, bool]:
        """Start both servers from this process; says of each whether it was started now."""
        return {server.name: started for server, started in Checkout(self.local).up(("postgres", "valkey"))}

    def down(self) -> list[str]:
        """Stop them from this process; says which ran."""
        return [server.name for server in Checkout(self.local).down()]

    def servers(self) -> dict[str, Server]:
        """Return the servers that were ever started here."""
        return {server.name: server for server in Checkout(self.local).started_servers()}

    def pids(self) -> dict[str, int]:
        """Return the process numbers of the servers that run."""
        return {s.name: s.process.pid for s in self.servers().values() if s.process and s.is_running()}

    def urls(self) -> dict[str, str]:
        return {server.name: server.url for server in self.servers().values()}


@pytest.fixture
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CheckoutCopy]:
    """A checkout whose servers are stopped and gone when the test ends."""
    copy = CheckoutCopy(tmp_path_factory.mktemp("checkout"))
    yield copy
    Checkout(copy.local).down(purge=True)
