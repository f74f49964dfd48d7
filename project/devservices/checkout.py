"""The development servers of one checkout: what `manage.py devservices` does."""

import fcntl
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from .accounts import Account, make_private_folder, postgres_account
from .addresses import write_addresses
from .binaries import PostgresBinaries, find_postgres, find_valkey
from .postgres import PostgresServer
from .server import Server
from .valkey import ValkeyServer

VARIABLES = {"postgres": "DATABASE_URL", "valkey": "REDIS_URL"}


class Checkout:
    """The servers whose state lies in `local` (the checkout's `.local/`).

    As root, PostgreSQL's user may not be able to enter the checkout. Then everything lies in a private folder that
    `.local/private` names; no mode of any folder of the user's is touched.
    """

    def __init__(self, local: Path) -> None:
        self.local = local
        self._private_file = local / "private"

    def up(self, names: Collection[str]) -> list[tuple[Server, bool]]:
        """Start the servers that do not run yet; each with whether it was started now.

        Two at once: the second waits, then finds them running.
        """
        with self._alone():
            servers = self._servers(names)
            outcome = [(server, server.start()) for server in servers]
            write_addresses(self.local, {VARIABLES[server.name]: server.url for server in servers})
            return outcome

    def down(self, *, purge: bool = False) -> list[Server]:
        """Stop the servers that `up` started, and return them; with `purge`, remove everything they left."""
        if not self.local.exists():
            return []
        with self._alone():
            stopped = [server for server in self.started_servers() if server.stop()]
            if purge:
                if self._named_private_folder():
                    shutil.rmtree(self._home())
                shutil.rmtree(self.local)
            return stopped

    def started_servers(self) -> list[Server]:
        """Return the servers that were ever started here, running or not."""
        home = self._home()
        # To stop a server or look at it, its binaries do not matter.
        servers: list[Server] = [
            PostgresServer(home / PostgresServer.name, PostgresBinaries(Path())),
            ValkeyServer(home / ValkeyServer.name, Path()),
        ]
        return [server for server in servers if server.port is not None]

    def _servers(self, names: Collection[str]) -> list[Server]:
        servers: list[Server] = []
        if PostgresServer.name in names:
            account = postgres_account()
            binaries = find_postgres()
            if account:
                binaries = binaries.reachable_by(account, self._choose_home(account, binaries))
            servers.append(PostgresServer(self._home() / PostgresServer.name, binaries, account))
        if ValkeyServer.name in names:
            servers.append(ValkeyServer(self._home() / ValkeyServer.name, find_valkey()))
        return servers

    def _choose_home(self, account: Account, binaries: PostgresBinaries) -> Path:
        home = self._home()
        reachable = account.can_enter(home) and account.can_run(binaries.postgres, "--version")
        if home == self.local and not reachable:
            home = make_private_folder(account)
            self._private_file.write_text(f"{home}\n")
        return home

    def _home(self) -> Path:
        return self._named_private_folder() or self.local

    def _named_private_folder(self) -> Path | None:
        try:
            folder = Path(self._private_file.read_text().strip())
        except FileNotFoundError:
            return None
        return folder if folder.is_dir() else None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep others out; the kernel lets go when we die."""
        while True:
            self.local.mkdir(exist_ok=True)
            self.local.chmod(0o755)
            with (self.local / "lock").open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if _is_still_there(self.local / "lock", file.fileno()):
                    yield
                    return


def _is_still_there(path: Path, descriptor: int) -> bool:
    """Say whether the open file is still the one at `path`: a purge that we waited for has removed it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
