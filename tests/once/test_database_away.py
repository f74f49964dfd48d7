"""PostgreSQL stops in the middle of the work of once and leased actors, and comes back: none is lost or done twice."""

import signal
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from project.devservices.postgres import PostgresServer
from tests.jobs import actors
from tests.once.conftest import Jobs
from tests.servers.plugin import SCRATCH, start_postgres
from tests.servers.processes import Processes
from tests.waiting import wait_until

NUMBER = 8


@pytest.fixture(scope="module")
def server(pytestconfig: pytest.Config) -> Iterator[PostgresServer]:
    """A server of these tests' own."""
    started = start_postgres(pytestconfig.stash[SCRATCH], "postgres-away")
    yield started
    started.stop()


class Books:
    """What the jobs left on that server."""

    def __init__(self, server: PostgresServer) -> None:
        self._url = server.url

    def empty(self) -> None:
        with psycopg.connect(self._url) as connection:
            connection.execute("TRUNCATE jobs_effect, leases_receipt, leases_deadletter, leases_turn")

    def effects(self) -> list[str]:
        with psycopg.connect(self._url) as connection:
            return sorted(name for (name,) in connection.execute("SELECT name FROM jobs_effect"))

    def count(self, what: Any) -> int:
        with psycopg.connect(self._url) as connection:
            return int(connection.execute(f"SELECT count(*) FROM {what}").fetchall()[0][0])


def test_jobs_whose_database_goes_away_and_comes_back_are_done_once(
    server: PostgresServer, jobs: Jobs, processes: Processes
) -> None:
    env: dict[str, Any] = {"DATABASE_URL": server.url}
    books = Books(server)
    if not books.count("pg_class WHERE relname = 'jobs_effect'"):
        processes.run("migrate", "--verbosity", 0, env=env)
    books.empty()
    for number in range(NUMBER):
        jobs.send(actors.retry_later, f"{number}", f"leased {number}", 0.3)
        jobs.send(actors.quick, f"quick {number}")
        jobs.send(actors.index, f"{number}")  # once, with an effect outside
        jobs.send(actors.serial, "line", f"serial {number}")
    workers = jobs.start(2, 2, **env)
    wait_until(lambda: len(books.effects()) >= NUMBER // 2, 40)
    assert server.process
    server.process.signal(signal.SIGQUIT)  # as after a crash: no client is waited for
    assert server.process.wait(20)
    wait_until(lambda: workers.output().count("the database does not answer") >= NUMBER, 30)
    server.start()
    wait_until(lambda: len(set(books.effects())) == 3 * NUMBER, 60)
    wait_until(lambda: books.count("leases_receipt WHERE state = 'done'") == 2 * NUMBER, 60)
    wait_until(jobs.is_done, 60)
    assert len([name for name in books.effects() if name.startswith("quick")]) == NUMBER
    assert not books.count("leases_deadletter")
    assert workers.is_running()
