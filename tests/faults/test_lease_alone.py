"""The lease without fence, constraint and outbox: it saves work, and it cannot be trusted with more."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from django.db import connection

from leases.resources import key_of
from tests.faults.conftest import PATIENCE, Programs
from tests.waiting import wait_until

RESOURCE = "customer:1"


@pytest.fixture(autouse=True)
def plain_tables(programs: Programs) -> Iterator[None]:
    """Tables that nothing guards."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE plain_note (resource text)")
        cursor.execute("CREATE TABLE plain_work (resource text)")
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE plain_note, plain_work")


def count(table: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table}")
        return int(cursor.fetchone()[0])


def test_six_at_once_do_the_work_once(programs: Programs) -> None:
    first = programs.start("lease_alone", RESOURCE, "60000", fault="SIGSTOP plain.working")
    first.reached()
    others = [programs.start("lease_alone", RESOURCE, "60000") for _ in range(5)]
    assert [other.end()["error"] for other in others] == ["LeaseBusy"] * 5
    first.wake()
    assert first.end() == {"outcome": "noted"}
    assert (count("plain_work"), count("plain_note")) == (1, 1)


def test_frozen_holder_writes_a_second_time_after_takeover(programs: Programs, redis_client: "redis.Redis") -> None:
    first = programs.start("lease_alone", RESOURCE, "2000", fault="SIGSTOP plain.writing")
    first.reached()
    wait_until(lambda: not redis_client.exists(key_of(RESOURCE)))
    assert programs.start("lease_alone", RESOURCE, "2000").end() == {"outcome": "noted"}
    first.wake()
    assert first.end()["error"] == "LeaseLost"  # it learns of it, one write too late
    assert count("plain_note") == 2


def test_holder_frozen_before_its_last_check_stops(programs: Programs, redis_client: "redis.Redis") -> None:
    first = programs.start("lease_alone", RESOURCE, "2000", fault="SIGSTOP plain.working")
    first.reached()
    wait_until(lambda: not redis_client.exists(key_of(RESOURCE)))
    assert programs.start("lease_alone", RESOURCE, "2000").end() == {"outcome": "noted"}
    first.wake()
    assert first.end()["error"] == "LeaseLost"
    assert count("plain_note") == 1


@pytest.mark.parametrize("step", ["lease.registered", "lease.releasing"])
def test_release_after_expiry_leaves_the_successors_key(
    programs: Programs, redis_client: "redis.Redis", tmp_path: Path, step: str
) -> None:
    first = programs.start("lease_alone", RESOURCE, "1500", fault=f"SIGSTOP {step}")
    first.reached()
    wait_until(lambda: not redis_client.exists(key_of(RESOURCE)))
    successor = programs.start("hold", RESOURCE, "60000", str(tmp_path / "enough"))
    held = successor.process.wait_for_event("held", PATIENCE)
    first.wake()
    assert first.end()["error"] == "LeaseLost"
    assert redis_client.get(key_of(RESOURCE)) == f"{held['holder']}:{held['token']}"
    (tmp_path / "enough").touch()
    assert successor.end() == {"outcome": "released"}
    assert not redis_client.exists(key_of(RESOURCE))
