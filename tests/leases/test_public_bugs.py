"""What other lock libraries were reported for; docs/public-bugs.md lists every report and its test."""

import re
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from redis.exceptions import RedisError

import leases
from leases import clock, hold, live, redis_store
from leases.acquiring import _acquire_once
from leases.errors import LeaseLost, LeaseUnavailable
from leases.keeper import keeper
from leases.models import Fence
from leases.resources import key_of
from leases.stopping import Job
from tests.leases.conftest import steal
from tests.leases.threads import in_thread
from tests.ledger.models import Account, Entry
from tests.servers.redis_server import PrivateRedis
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
SHORT = timedelta(milliseconds=600)
SOURCES = Path(leases.__file__).parent


def acquire(resource: str, ttl: timedelta = timedelta(seconds=60)) -> leases.Lease:
    return _acquire_once(resource, ttl=ttl, using="default", job=Job())


def test_evicted_lease_does_not_lower_the_next_token(redis_server: PrivateRedis, settings: Any) -> None:  # locks L04
    settings.CACHES = {
        **settings.CACHES,
        "leases": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": redis_server.url},
    }
    client = redis_server.client()
    evicted = acquire("customer:1")
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 1_000_000)

    def is_evicted() -> bool:
        for _ in range(100):
            client.set(f"traffic:{time.monotonic_ns()}", "x" * 10_000)
        return client.get(key_of("customer:1")) is None

    wait_until(is_evicted, timeout=30)
    with hold("customer:1") as lease:
        assert lease.token > evicted.token


def test_no_key_is_left_in_redis_however_many_resources_were_leased(redis: Any) -> None:  # locks L06
    # outbox B59
    for number in range(50):
        with hold(f"customer:{number}"):
            pass
    assert redis.keys("lease:*") == []


def test_lease_keeps_its_own_token_after_it_was_lost() -> None:  # locks L07
    with pytest.raises(LeaseLost), hold("customer:1", ttl=SHORT) as lease:
        token = lease.token
        newer = steal("customer:1")
        wait_until(lambda: not lease.is_held)
        assert lease.token == token < newer


def test_late_release_of_one_acquisition_leaves_the_next_of_the_same_process(
    redis: Any,
) -> None:  # locks L13 L21 L23 L24
    # outbox B53
    first = acquire("customer:1")
    redis.delete(key_of("customer:1"))
    second = acquire("customer:1")
    assert first.holder != second.holder
    first.release()
    assert redis.get(key_of("customer:1")) == f"{second.holder}:{second.token}".encode()
    second.release()


def test_acquisition_that_took_longer_than_the_lease_is_given_up(  # locks L11 L46 L47
    account: Account, resource: str, redis: Any
) -> None:
    with hold(resource):
        pass
    blocked, done = threading.Event(), threading.Event()

    def block() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT FROM leases_fence WHERE resource = %s FOR SHARE", [resource])
            blocked.set()
            until = time.monotonic() + 0.45
            while time.monotonic() < until:  # busy, so that nobody ends it
                cursor.execute("SELECT pg_sleep(0.01)")
        done.set()

    with in_thread(block):
        assert blocked.wait(10)
        with (
            pytest.raises(LeaseUnavailable, match="longer than it would have lasted"),
            hold(resource, ttl=timedelta(milliseconds=300)),
        ):
            pytest.fail("worked under a lease that had run out before it was granted")
        assert done.wait(10)
    assert redis.get(key_of(resource)) is None


def test_release_wins_over_a_renewal_that_is_under_way(redis: Any, settings: Any) -> None:  # locks L30 L37
    settings.LEASES_LOCK_DELAY = timedelta(minutes=1)  # so that a key which is put back too late would stay
    for number in range(20):
        # On a busy machine one may be lost before it is renewed; no key may be left of it either.
        with suppress(LeaseLost, LeaseUnavailable), hold(f"customer:{number}", ttl=SHORT / 2) as lease:
            wait_until_about_to_renew(lease)
    keeper_is_idle(redis)
    assert redis.keys("lease:*") == []


def wait_until_about_to_renew(lease: leases.Lease) -> None:
    wait_until(lambda: clock.boottime() >= lease.next_renewal - 0.002 or not lease.is_held)


def keeper_is_idle(redis: Any) -> None:
    """Wait until one more lease was renewed, so that whatever was under way before it has ended."""
    with hold("idle", ttl=SHORT) as lease:
        before = lease.deadline
        wait_until(lambda: lease.deadline > before)


def test_error_in_the_keeper_is_logged_and_does_not_end_it(  # locks L33
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, failed = redis_store.renew, threading.Event()

    def once(renewals: Any) -> Any:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("a bug in the renewal")
        return real(renewals)

    monkeypatch.setattr(redis_store, "renew", once)
    with hold("customer:1", ttl=SHORT) as lease:
        before = lease.deadline
        wait_until(lambda: lease.deadline > before)
    assert failed.is_set()
    assert "a bug in the renewal" in caplog.text


def test_error_while_acquiring_never_lets_the_body_run(monkeypatch: pytest.MonkeyPatch) -> None:  # locks L39
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RedisError("anything")

    monkeypatch.setattr(redis_store, "acquire", broken)
    with pytest.raises(LeaseUnavailable), hold("customer:1"):
        pytest.fail("the body ran without the lease")


def test_expired_lease_is_not_resurrected_by_a_renewal_that_still_finds_its_key(redis: Any) -> None:  # locks L48 L57
    with pytest.raises(LeaseLost), hold("customer:1") as lease:
        lease.deadline = clock.boottime() - 0.001
        assert redis.get(key_of("customer:1")) is not None
        with pytest.raises(LeaseLost):
            lease.check()
        lease.renewed(clock.boottime())
        lease.check()


def test_scripts_touch_only_the_key_they_are_given() -> None:  # locks L61
    # locks L44
    scripts = sorted((SOURCES / "lua").glob("*.lua"))
    assert len(scripts) == 3
    for script in scripts:
        code = re.sub(r"--.*", "", script.read_text())
        named = re.findall(r"redis\.call\('\w+', ([\w\[\]]+)", code)
        assert set(named) <= {"key", "KEYS[1]"}, script.name
        assert not re.search(r"KEYS\[[^1]\]", code), script.name


def test_five_thousand_leases_are_renewed_by_one_thread(redis: Any) -> None:  # locks L62
    held = [acquire_in_redis(f"customer:{number}") for number in range(5_000)]
    before = {lease.resource: lease.deadline for lease in held}
    for lease in held:
        lease.next_renewal = clock.boottime()
        keeper.keep(lease)
    wait_until(lambda: all(lease.deadline > before[lease.resource] for lease in held), timeout=30)
    assert sum(thread.name == "leases-keeper" for thread in threading.enumerate()) == 1
    assert len(live(before)) == 5_000


def acquire_in_redis(resource: str) -> leases.Lease:
    granted = redis_store.acquire(resource, holder="a" * 32, ttl_ms=60_000, floor=1)
    assert isinstance(granted, redis_store.Granted)
    return leases.Lease(
        resource,
        holder="a" * 32,
        token=granted.token,
        ttl=timedelta(seconds=60),
        using="default",
        asked_at=clock.boottime(),
        job=Job(),
    )


def test_holder_that_was_suspended_with_its_machine_knows_that_its_lease_ran_out(  # locks L64
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert clock._CLOCK == time.CLOCK_BOOTTIME, "CLOCK_MONOTONIC stands still during a suspend"
    with pytest.raises(LeaseLost), hold("customer:1") as lease:
        real = clock.boottime
        monkeypatch.setattr("leases.lease.boottime", lambda: real() + 3600)
        lease.check()


def test_no_statement_judges_a_lease_by_the_time_its_transaction_began() -> None:  # locks L71
    for source in SOURCES.glob("*.py"):
        statements = re.findall(r'"""\n?(?:WITH|SELECT|INSERT|UPDATE|DELETE).*?"""', source.read_text(), re.DOTALL)
        for statement in statements:
            if "transaction_isolation" in statement:
                continue  # asks for the age of the transaction itself, whose snapshot may be older than the lease
            assert not re.search(r"\b(now\(\)|current_timestamp|transaction_timestamp)", statement, re.IGNORECASE), (
                source
            )


def test_one_holder_writes_many_times_with_one_token(account: Account, resource: str) -> None:  # locks L10
    with hold(resource) as lease:
        for _ in range(3):
            Entry.objects.create(account=account)
    assert list(Entry.objects.values_list("token", flat=True)) == [lease.token] * 3
    assert Fence.objects.get(resource=resource).token == lease.token
