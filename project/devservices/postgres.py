"""PostgreSQL for one checkout or one test run."""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import psycopg
from psycopg import sql

from .accounts import Account
from .binaries import PostgresBinaries, major_version
from .errors import StartFailed, WrongVersion
from .processes import ServerProcess, began, start_detached
from .server import Server

ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PATH": os.defpath}


class PostgresServer(Server):
    """A PostgreSQL that trusts everybody who reaches the loopback: for development and tests only.

    `account` is the user it runs as when we are root. `options` are server settings on top of ours.
    """

    name = "postgres"
    # Fast: SIGTERM would wait for the clients to leave, for ever.
    stop_signal = signal.SIGINT
    database: ClassVar[str] = "invoice_once"

    def __init__(
        self,
        home: Path,
        binaries: PostgresBinaries,
        account: Account | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(home)
        self._binaries = binaries
        self._account = account
        self._options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "200",
            "timezone": "UTC",
            "log_timezone": "UTC",
            **(options or {}),
        }

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{self.database}"

    def prepare(self) -> None:
        if (self.data / "PG_VERSION").exists():
            self._check_version()
            self._remove_stale_lock()
            return
        # Made beside its place, and moved there whole: half of one would look like one for ever.
        draft = self.home / "data.new"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        if self._account:
            os.chown(draft, self._account.uid, self._account.gid)
        # fmt: off
        completed = self._run(
            self._binaries.initdb, "--pgdata", draft, "--username", "postgres", "--auth", "trust",
            "--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions",
        )
        # fmt: on
        if completed.returncode:
            raise StartFailed(f"initdb could not make {draft}: {completed.stderr.strip()}")
        draft.rename(self.data)

    def spawn(self, port: int) -> ServerProcess:
        command: list[str | Path] = [self._binaries.postgres, "-D", self.data, "-p", str(port)]
        for name, value in self._options.items():
            command += ["-c", f"{name}={value}"]
        return start_detached(
            command, log=self.log, directory=Path("/"), environment=ENVIRONMENT, account=self._account
        )

    def pid_if_ours(self) -> int | None:
        try:
            with psycopg.connect(
                f"postgresql://postgres@127.0.0.1:{self.port}/postgres", connect_timeout=2, autocommit=True
            ) as connection:
                row = connection.execute("SELECT current_setting('data_directory')").fetchone()
                pid = int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (psycopg.Error, OSError, ValueError):
            return None
        return pid if row and os.path.realpath(row[0]) == os.path.realpath(self.data) else None

    def start(self) -> bool:
        started = super().start()
        self._create_database()
        return started

    def _create_database(self) -> None:
        with psycopg.connect(f"postgresql://postgres@127.0.0.1:{self.port}/postgres", autocommit=True) as connection:
            exists = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [self.database]).fetchone()
            if not exists:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self.database)))

    def _check_version(self) -> None:
        ours = (self.data / "PG_VERSION").read_text().strip()
        binary = major_version(self._run(self._binaries.postgres, "--version").stdout)
        if ours != binary:
            raise WrongVersion(
                f"The data in {self.data} are PostgreSQL {ours}'s and {self._binaries.postgres} is {binary}: "
                "`manage.py devservices down --purge` starts afresh."
            )

    def _remove_stale_lock(self) -> None:
        """Remove the lock file of a server that is gone, where PostgreSQL itself would take it for running.

        It only asks whether there is a process of that number: a stranger may have it since a restart of the machine,
        or it is the dead server, which in a container without an init process nobody ever collects.
        """
        lock = self.data / "postmaster.pid"
        try:
            pid = int(lock.read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return
        ours_is_gone = self.process is not None and self.process.pid == pid and not self.process.is_running()
        if ours_is_gone or began(pid) is None:
            lock.unlink()

    def _run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - our own words
            [str(part) for part in command],
            cwd="/",
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            **(self._account.identity if self._account else {}),
        )
