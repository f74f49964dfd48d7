"""Redis cut off, silent, restarted, full, demoted or failed over: typed errors, no lost job, no stale write."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django_redis import get_redis_connection
from redis.backoff import ConstantBackoff
from redis.exceptions import BusyLoadingError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from leases import fence, hold
from leases.clock import boottime
from leases.errands import errands
from leases.errors import LeaseLost, LeaseUnavailable, StaleToken
from leases.models import Fence, Incident, LeaseRecord
from leases.process import ProcessIdentity
from leases.resources import key_of
from tests.leases.proxy import Proxy, proxy_to
from tests.leases.threads import in_thread
from tests.ledger.models import Account, Entry
from tests.servers.plugin import SCRATCH, start_redis
from tests.servers.redis_server import PrivateRedis
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
SHORT = timedelta(milliseconds=1500)


@pytest.fixture
def use(settings: Any) -> Callable[[int], None]:
    """Have `leases` use the server on another port, with short timeouts."""

    def use(port: int) -> None:
        settings.CACHES = {
            **settings.CACHES,
            "leases": {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": f"redis://127.0.0.1:{port}/0",
                "OPTIONS": {"SOCKET_CONNECT_TIMEOUT": 0.3, "SOCKET_TIMEOUT": 0.3},
            },
        }

    return use


@pytest.fixture
def proxy(redis_server: PrivateRedis, use: Callable[[int], None]) -> Iterator[Proxy]:
    with proxy_to(redis_server.port) as proxy:
        use(proxy.port)
        yield proxy


def test_lost_reply_to_acquire_is_recognised_as_ones_own(proxy: Proxy, redis_server: PrivateRedis) -> None:  # locks L43
    get_redis_connection("leases").ping()
    proxy.replies_to_lose = 1
    with hold("customer:1") as lease:
        assert proxy.replies_to_lose == 0
        assert redis_server.client().get(key_of("customer:1")) == f"{lease.holder}:{lease.token}"


@pytest.fixture
def repeating_client(proxy: Proxy, settings: Any) -> None:
    """A client that repeats by itself what it got no reply to, half a second later."""
    again = {"retry": Retry(ConstantBackoff(0.5), 3), "retry_on_error": [RedisConnectionError]}
    caches = {**settings.CACHES, "leases": {**settings.CACHES["leases"]}}
    caches["leases"]["OPTIONS"] = {**caches["leases"]["OPTIONS"], "CONNECTION_POOL_KWARGS": again}
    settings.CACHES = caches


@pytest.mark.parametrize("is_taken", [False, True])
def test_release_that_the_client_repeats_after_a_lost_reply_is_no_incident(  # locks L18
    is_taken: bool,
    proxy: Proxy,
    repeating_client: None,
    redis_server: PrivateRedis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first try deleted the key; the second finds it gone, or the key of the next holder, whom the first woke."""

    def next_holder() -> None:
        if is_taken and held.wait(10):
            wait_until(lambda: not redis.exists(key))
            token = lease.token + 1
            redis.set(key, f"{'f' * 32}:{token}", px=60_000)
            next_one = fence.Registration(lease.resource, token, "f" * 32, 60_000, ProcessIdentity.own(), "")
            fence.register(next_one, lock_timeout_ms=10_000, using="default")

    key, redis, held = key_of("customer:1"), redis_server.client(), threading.Event()
    with hold("customer:2"):
        pass  # loads the scripts
    with in_thread(next_holder), hold("customer:1") as lease:
        proxy.replies_to_lose = 1
        held.set()
    errands.finish()
    assert proxy.replies_to_lose == 0
    assert "lease.gone" in [getattr(record, "event", "") for record in caplog.records]
    assert not Incident.objects.exists()


def test_one_failed_renewal_is_retried_within_the_lease(proxy: Proxy) -> None:  # locks L26 L27 L28
    with hold("customer:1", ttl=SHORT) as lease:
        before = lease.deadline
        proxy.replies_to_lose = 1
        wait_until(lambda: proxy.replies_to_lose == 0)
        wait_until(lambda: lease.deadline > before)
        lease.check()
    assert not Incident.objects.exists()


def test_cut_line_is_survived_within_the_lease(proxy: Proxy) -> None:
    with hold("customer:1", ttl=SHORT) as lease:
        before = lease.deadline
        proxy.cut()
        wait_until(lambda: lease.deadline > before)


def test_silent_redis_costs_the_lease_at_its_deadline_and_not_before(proxy: Proxy) -> None:  # locks L29
    with pytest.raises(LeaseLost), hold("customer:1", ttl=SHORT) as lease:
        deadline = lease.deadline
        proxy.silent = True
        wait_until(lambda: not lease.is_held)
        assert boottime() >= deadline
        proxy.silent = False
    incident = wait_until(lambda: Incident.objects.first())
    assert incident is not None
    assert incident.detector == Incident.Detector.DEADLINE_PASSED


def test_acquire_on_a_silent_redis_fails_typed_and_leaves_nothing_behind(proxy: Proxy) -> None:  # locks L31
    get_redis_connection("leases").ping()
    proxy.silent = True
    with pytest.raises(LeaseUnavailable), hold("customer:1"):
        pass
    assert not LeaseRecord.objects.exists()


def test_release_on_a_silent_redis_neither_fails_the_job_nor_hides_its_end(proxy: Proxy) -> None:  # locks L16 L19 L66
    # locks L17
    with hold("customer:1") as lease:
        proxy.silent = True
    assert LeaseRecord.objects.get(token=lease.token).end == LeaseRecord.End.RELEASED
    assert not Incident.objects.exists()


def test_redis_that_refuses_connections_is_unavailable_not_busy(use: Callable[[int], None]) -> None:
    use(1)
    with pytest.raises(LeaseUnavailable), hold("customer:1"):
        pass


def is_loading(server: PrivateRedis) -> bool:
    with server.client() as client:
        try:
            client.get("any")
        except BusyLoadingError:
            return True
        return False


def test_redis_that_loads_its_data_is_unavailable_and_the_end_of_the_work_is_kept(
    redis: Any, redis_server: PrivateRedis, use: Callable[[int], None]
) -> None:
    """A server that copies another's data answers LOADING meanwhile, to everything."""
    for start in range(0, 20_000, 1000):
        redis.mset({f"filler:{number}": "x" * 50 for number in range(start, start + 1000)})
    origin = redis.connection_pool.connection_kwargs
    use(redis_server.port)
    with hold("customer:1") as lease:
        with redis_server.client() as client:
            client.config_set("loading-process-events-interval-bytes", 1024)
            client.config_set("key-load-delay", 500)
            client.replicaof(origin["host"], origin["port"])
        wait_until(lambda: is_loading(redis_server))
        with pytest.raises(LeaseUnavailable, match="loading"), hold("customer:2"):
            pass
    assert LeaseRecord.objects.get(token=lease.token).end == LeaseRecord.End.RELEASED


def test_restart_that_kept_everything_is_survived(redis_server: PrivateRedis, use: Callable[[int], None]) -> None:
    use(redis_server.port)
    with hold("customer:1", ttl=SHORT) as lease:
        redis_server.restart()
        before = lease.deadline
        wait_until(lambda: lease.deadline > before)
    assert not Incident.objects.exists()


def test_restart_that_forgot_everything_is_survived_with_an_incident(  # locks L70
    redis_server: PrivateRedis, use: Callable[[int], None]
) -> None:
    use(redis_server.port)
    with hold("customer:1", ttl=SHORT) as lease:
        redis_server.restart(forget=True)
        before = lease.deadline
        wait_until(lambda: lease.deadline > before)
        lease.check()
    assert wait_until(lambda: Incident.objects.count()) == 1


def test_paused_clients_delay_an_acquisition_and_leave_no_eternal_lease(  # locks L31
    redis_server: PrivateRedis, use: Callable[[int], None]
) -> None:
    use(redis_server.port)
    redis_server.client().client_pause(1500)
    with pytest.raises(LeaseUnavailable), hold("customer:1", ttl=SHORT):
        pass
    # What the server did after the pause is a grant that nobody renews.
    wait_until(lambda: redis_server.client().get(key_of("customer:1")) is None)
    with hold("customer:1", ttl=SHORT):
        pass


def test_full_redis_refuses_cleanly_and_keeps_what_it_has(  # locks L69
    redis_server: PrivateRedis, use: Callable[[int], None]
) -> None:
    use(redis_server.port)
    client = redis_server.client()
    with hold("customer:1", ttl=SHORT) as lease:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 1)
        with pytest.raises(LeaseUnavailable), hold("customer:2", ttl=SHORT):
            pass
        assert client.get(key_of("customer:2")) is None
        client.config_set("maxmemory", 0)
        lease.check()


def test_demoted_redis_costs_the_lease_at_its_deadline(  # locks L60
    redis_server: PrivateRedis, use: Callable[[int], None]
) -> None:
    use(redis_server.port)
    with pytest.raises(LeaseLost), hold("customer:1", ttl=SHORT) as lease:
        redis_server.client().replicaof("127.0.0.1", "1")
        with pytest.raises(LeaseUnavailable, match=r"(?i)read ?only"), hold("customer:2"):
            pass
        wait_until(lambda: not lease.is_held)


def test_token_outranks_the_old_masters_after_failover_to_a_replica_that_lags(  # locks L03
    redis_server: PrivateRedis, use: Callable[[int], None], account: Account, resource: str
) -> None:
    """The promoted replica never heard of the lease, nor of time: its clock's token is below the stored one."""
    use(redis_server.port)
    with pytest.raises(LeaseLost), hold(resource, ttl=timedelta(seconds=30)) as old:
        Entry.objects.create(account=account, memo="before")
        redis_server.flushall()
        Fence.objects.filter(resource=resource).update(token=old.token + 3_600_000_000)
        old.token += 3_600_000_000
        Entry.objects.create(account=account, memo="still ours")
        tokens: list[int] = []

        def successor() -> None:
            with hold(resource) as lease:
                tokens.append(lease.token)
                Entry.objects.create(account=Account.objects.get(), memo="successor")

        with in_thread(successor):
            pass
        assert tokens[0] > old.token
        with pytest.raises(StaleToken):
            Entry.objects.create(account=account, memo="stale")
    assert set(Entry.objects.values_list("memo", flat=True)) == {"before", "still ours", "successor"}


@pytest.fixture
def replica(pytestconfig: pytest.Config, redis_server: PrivateRedis, tmp_path: Path) -> Iterator[PrivateRedis]:
    server = PrivateRedis(start_redis(pytestconfig.stash[SCRATCH], f"replica-{tmp_path.name}"))
    yield server
    server.stop()


def test_replica_that_is_promoted_without_having_heard_of_a_lease_lets_no_two_holders_write(  # locks L03
    redis_server: PrivateRedis, replica: PrivateRedis, use: Callable[[int], None], account: Account, resource: str
) -> None:
    def successor() -> None:
        with hold(resource):
            Entry.objects.create(account=Account.objects.get(), memo="successor")

    use(redis_server.port)
    with proxy_to(redis_server.port) as link, replica.client() as promoted:
        promoted.replicaof("127.0.0.1", link.port)
        wait_until(lambda: promoted.info("replication")["master_link_status"] == "up")
        link.silent = True
        with pytest.raises(LeaseLost), hold(resource, ttl=timedelta(seconds=30)):
            assert not promoted.exists(key_of(resource))
            redis_server.kill()
            promoted.replicaof("NO", "ONE")
            use(replica.port)
            with in_thread(successor):
                pass
            with pytest.raises(StaleToken):
                Entry.objects.create(account=account, memo="stale")
    assert list(Entry.objects.values_list("memo", flat=True)) == ["successor"]


def test_wall_clock_that_jumps_expires_every_lease_and_the_fence_holds(  # locks L63
    redis_server: PrivateRedis, use: Callable[[int], None], account: Account, resource: str
) -> None:
    use(redis_server.port)
    with pytest.raises((LeaseLost, StaleToken)), hold(resource, ttl=timedelta(seconds=30)):
        redis_server.client().pexpireat(key_of(resource), 1)
        with in_thread(lambda: take(resource)):
            pass
        Entry.objects.create(account=account)
    assert not Entry.objects.exists()


def take(resource: str) -> None:
    with hold(resource):
        pass
