"""The ways to set the Redis client up that the tests of `leases` run with."""

from itertools import combinations

import pytest
from django_redis import get_redis_connection

from tests.leases.conftest import CLIENTS


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
