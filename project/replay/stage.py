"""Where a replay happens: a database and a Redis-like server of its own, gone when it is over."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from project.devservices.binaries import find_valkey
from project.devservices.valkey import ValkeyServer


class StageFailed(Exception):
    """The replay's database or server could not be made; the message says what to do."""


class Stage:
    """`folder` keeps the logs until the next replay; `near` is a database on the server to use."""

    def __init__(self, base: Path, folder: Path, near: str) -> None:
        self.base = base
        self.folder = folder
        self._near = near
        # The folder's own, so that what a killed replay left is found and replaced by the next.
        self._name = f"replay_{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:10]}"
        self.database_url = urlsplit(near)._replace(path=f"/{self._name}").geturl()
        self._valkey = ValkeyServer(folder / "valkey", find_valkey())

    @property
    def redis_url(self) -> str:
        return self._valkey.url

    @property
    def environment(self) -> dict[str, str]:
        """What every process of the replay gets."""
        servers = dict.fromkeys(("REDIS_URL", "BROKER_URL", "LEASES_REDIS_URL"), self.redis_url)
        return {**servers, "DATABASE_URL": self.database_url}

    def __enter__(self) -> "Stage":
        self._valkey.stop()
        for made in ("naive", "ours", "sample", "valkey"):
            shutil.rmtree(self.folder / made, ignore_errors=True)
        try:
            self._drop_database()
            self._execute(sql.SQL("CREATE DATABASE {}"))
        except psycopg.Error as error:
            raise StageFailed(f"The replay needs a database of its own and cannot make one: {error}") from error
        self._valkey.start()
        return self

    def fill(self, customers: int, seed: int, period: str) -> None:
        """Make the tables and import the sample."""
        words = [str(self.folder / "sample"), str(customers), str(seed), period]
        done = subprocess.run(  # noqa: S603 - our own words
            [sys.executable, "-m", "project.replay.prepare", *words],
            cwd=self.base,
            env={**os.environ, **self.environment, "LOG_LEVEL": "WARNING"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise StageFailed(f"The sample could not be imported:\n{done.stdout}{done.stderr}")

    def lines_per_customer(self) -> dict[int, int]:
        """Return how many lines each customer's invoice will have."""
        with psycopg.connect(self.database_url) as connection:
            rows = connection.execute(
                "SELECT customer_id, count(DISTINCT (metric, subject)) FROM billing_usageevent GROUP BY customer_id"
            ).fetchall()
        return dict(rows)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._valkey.stop()
        self._drop_database()

    def _drop_database(self) -> None:
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)"))

    def _execute(self, statement: sql.SQL) -> None:
        with psycopg.connect(self._near, autocommit=True) as connection:
            connection.execute(statement.format(sql.Identifier(self._name)))
