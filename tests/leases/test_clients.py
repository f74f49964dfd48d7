"""The ways to set the Redis client up that the tests of `leases` run with."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from django_redis import get_redis_connection
from redis.exceptions import NoPermissionError

from leases import hold
from leases.checks.redis_server import redis_server
from leases.watcher import Watcher
from tests.leases.conftest import CLIENTS
from tests.leases.threads import in_thread
from tests.waiting import wait_until


def test_every_two_ways_to_set_a_client_up_meet() -> None:  # locks L68
    ways = [(decode, protocol, "hiredis" in parser) for decode, protocol, parser in CLIENTS.values()]
    for one, other in combinations(range(3), 2):
        assert len({(way[one], way[other]) for way in ways}) == 4


def test_client_is_what_its_name_says(every_client: None, request: pytest.FixtureRequest) -> None:
    client = get_redis_connection("leases", write=True)
    client.set("lease:{x}", "1")
    answer = {"bytes": b"1", "text": "1"}
    connection = client.connection_pool.get_connection()
    try:
        decode, protocol, parser = request.node.callspec.params["every_client"].split("-")
        assert client.get("lease:{x}") == answer[decode]
        assert connection.protocol == int(protocol.removeprefix("RESP"))
        assert ("hiredis" in type(connection._parser).__module__) == (parser == "hiredis")
    finally:
        client.connection_pool.release(connection)


@pytest.fixture
def rights(redis: Any, settings: Any) -> Iterator[str]:
    """Those that the docs say to grant, which the client of `leases` has."""
    guide = " ".join(Path("docs/ready-for-production.md").read_text().split())
    rights = guide.partition("`ACL SETUSER invoice_once on >... ")[2].partition("`")[0]
    redis.execute_command("ACL", "SETUSER", "invoice_once", "on", ">secret", *rights.split())
    leases = settings.CACHES["leases"]
    location = leases["LOCATION"].replace("://", "://invoice_once:secret@")
    settings.CACHES = {**settings.CACHES, "leases": {**leases, "LOCATION": location}}
    yield rights
    redis.acl_deluser("invoice_once")


@pytest.mark.django_db(transaction=True)
def test_rights_that_the_docs_say_to_grant_suffice(rights: str, caplog: pytest.LogCaptureFixture) -> None:
    def renew() -> None:
        with hold("customer:1", ttl=timedelta(milliseconds=600)) as lease:
            held.set()
            first = lease.deadline
            wait_until(lambda: lease.deadline > first)

    held = threading.Event()
    with in_thread(renew):
        assert held.wait(10)
        with hold("customer:1", wait=timedelta(seconds=10)):
            pass
    Watcher().look()
    assert "leases.E030" not in {message.id for message in redis_server()}
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    with pytest.raises(NoPermissionError):
        get_redis_connection("leases").flushdb()
