"""Drainers while everything around them goes wrong at once; what arrived is counted at the receiver."""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection

from outbox.models import Message, State
from outbox.pruning import prune
from tests.servers.processes import Processes, RunningProcess
from tests.waiting import wait_until

from .test_drain import fill, recorded

pytestmark = pytest.mark.django_db(transaction=True)

COUNT = 1500
# 3: what one whose connection was cut had swept away is in doubt, until it tells; 75: its last word met a cut.
CUT = {0, 3, 75}
OPTIONS = ["drain_outbox", "--until-empty", "--channel", "record", "--batch-size", "50", "--micro-batch", "5"]


@contextmanager
def other_session(**more: Any) -> Iterator["psycopg.Connection[Any]"]:
    given = connection.get_connection_params()
    parameters = {name: given[name] for name in ("host", "port", "user", "password", "dbname") if given.get(name)}
    with psycopg.connect(**parameters, **more) as session:
        yield session


@contextmanager
def meanwhile(act: Callable[[], object], pause: float) -> Iterator[None]:
    """Do something again and again while the block runs."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(pause):
            act()
        connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(20)


def drained(drainers: list[RunningProcess], *, codes: set[int] | None = None) -> None:
    """Wait until each has ended, with 0 or with one of `codes`."""
    for drainer in drainers:
        assert drainer.wait(120) in (codes or {0}), drainer.output()


def everything_once(env: dict[str, str]) -> None:
    """Each message arrived once, except those in doubt, which arrived once or never."""
    arrived = recorded(env)
    in_doubt = set(Message.objects.filter(state=State.IN_DOUBT).values_list("dedupe_key", flat=True))
    assert set(Message.objects.values_list("state", flat=True)) <= {State.SENT, State.IN_DOUBT}
    assert max(arrived.values()) == 1
    missing = {f"k{n}" for n in range(1, COUNT + 1)} - set(arrived)
    assert missing <= in_doubt


def test_connections_cut_again_and_again(processes: Processes, drainer_env: dict[str, str]) -> None:
    # outbox A13, A19: also what a restart of the server does to a drainer
    fill(COUNT)
    env = {**drainer_env, "OUTBOX_TEST_CLAIM_SECONDS": "3", "LOG_LEVEL": "ERROR", "OUTBOX_TEST_SEND_SECONDS": "0.002"}
    cuts: list[int] = []
    with other_session(autocommit=True) as session:

        def cut() -> None:
            victims = session.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
                " AND query LIKE '%%outbox_message%%'"
                " AND pid <> ALL(%s)",
                [[session.info.backend_pid, own]],
            ).fetchall()
            for (pid,) in victims:
                session.execute("SELECT pg_terminate_backend(%s)", [pid])
                cuts.append(pid)

        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            own = cursor.fetchone()[0]
        with meanwhile(cut, 0.2):
            drainers = [processes.start(*OPTIONS, env=env) for _ in range(2)]
            drained(drainers, codes=CUT)
    assert len(cuts) > 2
    unfinished = Message.objects.filter(state__in=[State.PENDING, State.CLAIMED, State.SENDING])

    def finished() -> bool:
        drained([processes.start(*OPTIONS, env=env)], codes={0, 3})
        return not unfinished.exists()

    wait_until(finished, 60)
    everything_once(env)
    assert not Message.objects.filter(state=State.IN_DOUBT).exists()  # every drainer lived to tell


def test_serializable_by_default_is_retried(processes: Processes, drainer_env: dict[str, str]) -> None:
    # outbox A18
    fill(COUNT)
    name = connection.settings_dict["NAME"]
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'serializable'")
        env = {**drainer_env, "OUTBOX_TEST_CLAIM_SECONDS": "30", "LOG_LEVEL": "ERROR"}
        drained([processes.start(*OPTIONS, env=env) for _ in range(2)])
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f'ALTER DATABASE "{name}" RESET default_transaction_isolation')
    assert recorded(env) == Counter(f"k{n}" for n in range(1, COUNT + 1))


def test_statements_that_the_server_prepares(processes: Processes, drainer_env: dict[str, str]) -> None:
    fill(COUNT)
    env = {**drainer_env, "OUTBOX_TEST_CLAIM_SECONDS": "30", "LOG_LEVEL": "ERROR", "OUTBOX_TEST_PREPARED": "yes"}
    drained([processes.start(*OPTIONS, env=env) for _ in range(2)])
    assert recorded(env) == Counter(f"k{n}" for n in range(1, COUNT + 1))


def test_pruning_and_a_held_snapshot_beside_the_drain(processes: Processes, drainer_env: dict[str, str]) -> None:
    # outbox A23
    fill(COUNT)
    env = {**drainer_env, "OUTBOX_TEST_CLAIM_SECONDS": "30", "LOG_LEVEL": "ERROR"}
    pruned: list[int] = []

    def prune_at_once() -> None:
        pruned.extend(prune("default", older_than=timedelta(microseconds=1), batch_size=50))

    with other_session() as session:
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT 1")
        with meanwhile(prune_at_once, 0.02):
            drained([processes.start(*OPTIONS, env=env) for _ in range(2)])
        with contextlib.suppress(psycopg.Error):
            session.rollback()
    assert recorded(env) == Counter(f"k{n}" for n in range(1, COUNT + 1))
    assert sum(pruned) > 0
    assert set(Message.objects.values_list("state", flat=True)) == {State.SENT}


def test_vacuum_comes_by_the_number_of_dead_rows_however_large_the_history_is() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT name, option_value::float8 FROM pg_class, pg_options_to_table(reloptions) AS o(name, option_value)
                WHERE oid = 'outbox_message'::regclass"""
        )
        options = dict(cursor.fetchall())
    assert options["fillfactor"] < 100
    for what in ("vacuum", "analyze"):
        assert options[f"autovacuum_{what}_scale_factor"] == 0
        assert 0 < options[f"autovacuum_{what}_threshold"] <= 50_000
