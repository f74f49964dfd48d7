"""PostgreSQL restarted in the middle of a drain, and behind a pooler; what arrived is counted at the receiver."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from project.devservices.postgres import PostgresServer
from tests.leases.other_database import new_server
from tests.leases.test_postgres_in_trouble import Pooler
from tests.servers.plugin import SCRATCH
from tests.servers.processes import Processes
from tests.waiting import wait_until

from .test_drain import recorded

pytestmark = pytest.mark.django_db(transaction=True)

COUNT = 3000
OPTIONS = ["drain_outbox", "--watch", "--channel", "record", "--batch-size", "50", "--micro-batch", "5"]
FILL = """
INSERT INTO outbox_message (channel, dedupe_key, digest, payload)
SELECT 'record', 'k' || n, '', '{}' FROM generate_series(1, %s) AS n
"""


@pytest.fixture
def server(
    pytestconfig: pytest.Config, tmp_path: Path, processes: Processes, drainer_env: dict[str, str]
) -> Iterator[PostgresServer]:
    """A server of this test's own, with messages in it, which the environment names."""
    server = new_server(pytestconfig.stash[SCRATCH], f"postgres-{tmp_path.name}")
    server.start()
    more = {"OUTBOX_TEST_CLAIM_SECONDS": "60", "OUTBOX_TEST_SEND_SECONDS": "0.003", "LOG_LEVEL": "ERROR"}
    drainer_env |= {"DATABASE_URL": server.url, **more}
    processes.run("migrate", "--skip-checks", env=drainer_env)
    rows(server, FILL, COUNT)
    yield server
    server.stop()


def rows(server: PostgresServer, query: str, *values: Any) -> list[Any]:
    with psycopg.connect(server.url, autocommit=True) as session:
        cursor = session.execute(query, values)
        return cursor.fetchall() if cursor.description else []


def _arrived(env: dict[str, str], count: int) -> bool:
    return recorded(env).total() > count


def test_restarts_in_mid_drain_lose_nothing_and_send_nothing_twice(
    server: PostgresServer, processes: Processes, drainer_env: dict[str, str]
) -> None:
    env = drainer_env
    drainers = [processes.start(*OPTIONS, env=env) for _ in range(2)]
    for arrived in (COUNT // 5, COUNT // 2, COUNT * 4 // 5):
        wait_until(partial(_arrived, env, arrived), 60)
        server.stop()
        server.start()
    wait_until(lambda: rows(server, "SELECT DISTINCT state FROM outbox_message") == [("sent",)], 60)
    assert recorded(env) == Counter(f"k{n}" for n in range(1, COUNT + 1))
    for drainer in drainers:
        assert "the database does not answer" in drainer.output()  # it lived through that
        drainer.terminate()
        assert drainer.wait() == 0, drainer.output()


@pytest.mark.pgbouncer
def test_drainers_behind_a_pooler_in_transaction_mode_send_everything_once(
    server: PostgresServer,
    processes: Processes,
    drainer_env: dict[str, str],
    pytestconfig: pytest.Config,
    tmp_path: Path,
) -> None:
    # outbox A38
    with Pooler(server, pytestconfig.stash[SCRATCH], tmp_path) as port:
        env = {**drainer_env, "DATABASE_URL": server.url.replace(f":{server.port}/", f":{port}/")}
        drainers = [processes.start(*OPTIONS, "--no-notify", env=env) for _ in range(3)]
        wait_until(lambda: rows(server, "SELECT DISTINCT state FROM outbox_message") == [("sent",)], 60)
        for drainer in drainers:
            drainer.terminate()
            assert drainer.wait() == 0, drainer.output()
    assert recorded(env) == Counter(f"k{n}" for n in range(1, COUNT + 1))
