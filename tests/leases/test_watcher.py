"""The watcher: it sees frozen holders, accuses nobody who is alive, and is alone."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.db.models import F
from dramatiq import Worker
from dramatiq.brokers.stub import StubBroker
from redis.exceptions import ConnectionError as RedisConnectionError

from leases import acquiring, fence, hold, keys, live
from leases.errors import LeaseLost
from leases.jobs import LeaseWatcher
from leases.keeper import keeper
from leases.lease import Lease
from leases.models import Incident, LeaseRecord, RedisMemory
from leases.process import ProcessIdentity
from leases.resources import key_of
from leases.stopping import Job
from leases.watcher import Watcher
from tests.leases import other_database
from tests.leases.conftest import steal
from tests.leases.other_database import ALIAS
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
SHORT = timedelta(milliseconds=600)


def place() -> str:
    return fence.place("watcher", using="default")


def acquire(resource: str, *, ttl: timedelta) -> Lease:
    return acquiring.acquire(resource, ttl=ttl, using="default", job=Job())


@contextmanager
def watching(watcher: Watcher) -> Iterator[threading.Thread]:
    def run() -> None:
        try:
            watcher.run()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield thread
    finally:
        watcher.stop.set()
        thread.join(10)
    assert not thread.is_alive()


@pytest.fixture
def frozen_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew nothing, as in a process that is stopped; its jobs' threads go on."""
    monkeypatch.setattr(keeper, "keep", lambda lease: None)


@pytest.fixture
def second_tables(django_db_blocker: Any) -> Iterator[None]:
    with other_database.second_tables(django_db_blocker):
        yield


def test_frozen_holder_is_seen_within_a_second_of_its_expiry(processes: Any) -> None:
    holder = processes.start_python("-m", "tests.leases.holder", "customer:1", "1.5")
    holder.wait_for_event("lease.registered", resource="customer:1")
    with watching(Watcher()):
        wait_until(lambda: place() in keys.read([place()]))
        wait_until(lambda: live(["customer:1"])["customer:1"] > timedelta(seconds=1.3))
        holder.freeze()
        wait_until(lambda: "customer:1" not in keys.read(["customer:1"]))
        wait_until(lambda: Incident.objects.exists(), timeout=1.0)
    incident = Incident.objects.get()
    assert (incident.detector, incident.fate) == (Incident.Detector.WATCHER, Incident.Fate.UNKNOWN)
    assert LeaseRecord.objects.get(resource="customer:1").end == LeaseRecord.End.EXPIRED
    holder.thaw()
    wait_until(lambda: Incident.objects.filter(fate=Incident.Fate.RUNNING).exists())
    assert Incident.objects.count() == 1


def test_crashed_holder_is_recorded_as_crashed(processes: Any) -> None:
    holder = processes.start_python("-m", "tests.leases.holder", "customer:1", "1.5")
    holder.wait_for_event("lease.registered", resource="customer:1")
    watcher = Watcher()
    watcher.look()
    holder.kill()
    wait_until(lambda: "customer:1" not in keys.read(["customer:1"]))
    watcher.look()
    incident = Incident.objects.get()
    assert (incident.detector, incident.fate) == (Incident.Detector.WATCHER, Incident.Fate.CRASHED)


def test_holder_that_renews_is_never_accused(settings: Any) -> None:
    # locks L36
    settings.LEASES_WATCH_INTERVAL = timedelta(milliseconds=20)
    with watching(Watcher()), hold("customer:1", ttl=SHORT) as lease:
        first = lease.deadline
        wait_until(lambda: lease.deadline > first + 3 * SHORT.total_seconds())
        lease.check()
    assert not Incident.objects.exists()


def test_release_between_the_look_at_redis_and_the_word_is_no_incident(frozen_keeper: None) -> None:
    """A watcher that was frozen between the two speaks of what it saw long ago."""
    watcher = Watcher()
    with hold("customer:1"):
        [record] = watcher._records(watcher._unended())
    watcher._accuse(record)
    assert not Incident.objects.exists()
    assert LeaseRecord.objects.get().end == LeaseRecord.End.RELEASED


@pytest.mark.usefixtures("every_client")
def test_key_that_redis_forgot_is_left_to_its_keeper_to_put_back(redis: Any) -> None:
    watcher = Watcher()
    with hold("customer:1", ttl=timedelta(seconds=3)) as lease:
        watcher.look()
        redis.delete(key_of("customer:1"))
        assert watcher.look() == 0
        assert Watcher().look() == 0  # one that was elected just now neither
        wait_until(lambda: redis.get(key_of("customer:1")) is not None)
        lease.check()
    incident = wait_until(lambda: Incident.objects.first())
    assert incident is not None
    assert incident.detector == Incident.Detector.KEY_GONE
    assert LeaseRecord.objects.get().end == LeaseRecord.End.RELEASED


@pytest.mark.usefixtures("every_client")
def test_another_holders_key_is_seen_before_the_deadline_of_the_first(frozen_keeper: None, redis: Any) -> None:
    lease = acquire("customer:1", ttl=timedelta(seconds=30))
    redis.set(key_of("customer:1"), "b" * 32 + ":9", px=30_000)
    assert Watcher().look() == 1
    assert Incident.objects.get().token == lease.token


@pytest.mark.usefixtures("every_client")
def test_redis_that_lost_its_memory_is_one_incident_not_many(redis: Any) -> None:
    watcher = Watcher()
    watcher.look()
    leases = [acquire(f"customer:{number}", ttl=timedelta(seconds=1.5)) for number in range(10)]
    watcher.look()
    redis.flushall()
    restored = [lease.deadline for lease in leases]
    wait_until(lambda: all(lease.deadline > before for lease, before in zip(leases, restored, strict=True)))
    watcher.look()
    for lease in leases:
        lease.check()
        lease.release()
    watcher.look()
    incident = Incident.objects.get()
    assert (incident.resource, incident.detector) == ("redis:leases", Incident.Detector.MEMORY_LOST)
    assert RedisMemory.objects.get().lost_at == incident.seen_at
    assert set(LeaseRecord.objects.values_list("end", flat=True)) == {"released"}


def test_holders_that_never_come_back_after_a_flush_are_part_of_its_one_incident(
    redis: Any, frozen_keeper: None
) -> None:
    watcher = Watcher()
    watcher.look()
    for number in range(5):
        acquire(f"customer:{number}", ttl=timedelta(seconds=2))
    watcher.look()
    redis.flushall()
    wait_until(lambda: watcher.look() >= 0 and not LeaseRecord.objects.filter(ended_at=None).exists())
    assert Incident.objects.get().detector == Incident.Detector.MEMORY_LOST


@pytest.mark.usefixtures("every_client")
def test_restart_with_its_data_is_a_loss_too_since_what_came_last_may_be_gone(redis: Any) -> None:
    watcher = Watcher()
    watcher.look()
    RedisMemory.objects.update(run_id="another server")
    watcher.look()
    watcher.look()
    assert Incident.objects.get().detector == Incident.Detector.MEMORY_LOST


@pytest.mark.usefixtures("every_client")
def test_first_look_at_a_fresh_redis_is_no_loss() -> None:
    Watcher().look()
    assert not Incident.objects.exists()
    assert RedisMemory.objects.get().lost_at is None


def test_of_many_watchers_one_watches_and_another_takes_over() -> None:
    def watched_by() -> list[int]:
        unended = LeaseRecord.objects.filter(resource=place(), ended_at=None)
        return list(unended.values_list("token", flat=True))

    first, second = Watcher(), Watcher()
    with watching(first):
        [token] = wait_until(watched_by)
        with watching(second):
            assert watched_by() == [token]
            first.stop.set()
            wait_until(lambda: watched_by() not in ([], [token]))
    assert not Incident.objects.exists()


def test_watchers_of_two_databases_that_share_a_redis_do_not_stand_in_each_others_way(
    monkeypatch: pytest.MonkeyPatch, second_tables: None
) -> None:
    watcher = Watcher(using=ALIAS)
    monkeypatch.setattr(watcher, "look", watcher.stop.set)
    give_up = threading.Timer(10, watcher.stop.set)
    give_up.start()
    with hold(place()):
        watcher.run()
    give_up.cancel()
    assert LeaseRecord.objects.using(ALIAS).filter(resource=fence.place("watcher", using=ALIAS)).exists()


def test_watcher_goes_on_after_redis_did_not_answer(caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, healed = keys.read, threading.Event()

    def read(resources: Any) -> Any:
        if not healed.is_set():
            raise RedisConnectionError("no route to host")
        return answers(resources)

    monkeypatch.setattr(keys, "read", read)
    with watching(Watcher()):
        wait_until(lambda: "cannot see: no route to host" in caplog.text)
        healed.set()
        wait_until(lambda: LeaseRecord.objects.filter(resource=place()).exists())


def test_incident_by_the_watcher_does_not_hide_that_the_holder_came_back(frozen_keeper: None) -> None:
    lease = acquire("customer:1", ttl=timedelta(milliseconds=300))
    watcher = Watcher()
    watcher.look()
    wait_until(lambda: watcher.look() == 1)
    with pytest.raises(LeaseLost):
        lease.check()
    wait_until(lambda: Incident.objects.filter(fate=Incident.Fate.RUNNING, detector="watcher").exists())


def test_records_beyond_one_batch_are_compared_too(frozen_keeper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leases.watcher._BATCH", 3)
    for number in range(8):
        steal(f"customer:{number}", ttl_ms=200)
    watcher = Watcher()
    watcher.look()
    wait_until(lambda: watcher.look() >= 0 and Incident.objects.count() == 8)


def test_worker_watches_by_a_middleware_and_gives_the_place_back_when_it_stops() -> None:
    broker = StubBroker(middleware=[LeaseWatcher()])
    worker = Worker(broker, worker_threads=1)
    worker.start()
    try:
        wait_until(lambda: LeaseRecord.objects.filter(resource=place(), ended_at=None).exists())
        steal("customer:1", ttl_ms=300)
        wait_until(lambda: Incident.objects.filter(resource="customer:1").exists())
    finally:
        worker.stop()
    assert LeaseRecord.objects.get(resource=place()).end == LeaseRecord.End.RELEASED
    assert place() not in keys.read([place()])


def test_lease_whose_key_stays_only_for_the_lock_delay_has_expired(settings: Any, frozen_keeper: None) -> None:
    settings.LEASES_LOCK_DELAY = timedelta(seconds=30)
    acquire("customer:1", ttl=timedelta(milliseconds=300))
    watcher = Watcher()
    watcher.look()
    wait_until(lambda: watcher.look() == 1)
    assert "customer:1" in keys.read(["customer:1"])


def test_loss_of_memory_does_not_explain_away_a_holder_that_froze_long_after_it(
    redis: Any, frozen_keeper: None
) -> None:
    watcher = Watcher()
    watcher.look()
    acquire("customer:1", ttl=timedelta(milliseconds=300))
    redis.flushall()
    watcher.look()
    LeaseRecord.objects.update(acquired_at=F("acquired_at") - timedelta(hours=2))
    RedisMemory.objects.update(lost_at=F("lost_at") - timedelta(hours=1))
    wait_until(lambda: watcher.look() >= 0 and not LeaseRecord.objects.filter(ended_at=None).exists())
    assert Incident.objects.get(resource="customer:1").detector == Incident.Detector.WATCHER


def test_holder_in_another_container_of_the_same_name_is_not_taken_for_crashed() -> None:
    """Its process number is free, or another's, where the watcher runs; `crashed` would alert nobody."""
    own = ProcessIdentity.own()
    ticks, _, realm = own.started.partition("@")
    assert realm
    assert own.is_gone() is False
    assert replace(own, started=f"{ticks}1@{realm}").is_gone() is True
    assert replace(own, started=f"{ticks}1@{realm[::-1]}").is_gone() is None
    assert replace(own, pid=2**22 + 1, started=f"{ticks}@{realm[::-1]}").is_gone() is None
