"""Holding a lease: who gets it, how it ends, and that nothing else's end is touched."""

import itertools
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from django.db import OperationalError, connection
from django_redis import get_redis_connection

from leases import Lease, current_lease, fence, hold, lent, live
from leases.errors import (
    LeaseBusy,
    LeaseLost,
)
from leases.keeper import keeper
from leases.models import Fence, Incident, LeaseRecord
from leases.resources import key_of
from leases.stopping import Job
from tests.leases.conftest import steal
from tests.leases.threads import in_thread
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("every_client")]
SHORT = timedelta(milliseconds=600)


def test_lease_registers_its_token_and_records_its_end(redis: Any) -> None:
    # outbox B60
    with hold("customer:1") as lease:
        assert redis.get(key_of("customer:1")) == f"{lease.holder}:{lease.token}".encode()
        assert Fence.objects.get(resource="customer:1").token == lease.token
        assert LeaseRecord.objects.get(token=lease.token).ended_at is None
        assert current_lease("customer:1") is lease
        assert timedelta(0) < lease.remaining() <= timedelta(seconds=60)
    assert redis.get(key_of("customer:1")) is None
    record = LeaseRecord.objects.get(token=lease.token)
    assert record.end == LeaseRecord.End.RELEASED
    assert current_lease() is None
    assert not Incident.objects.exists()


def test_second_caller_is_told_who_has_it_and_never_runs() -> None:
    refused: list[LeaseBusy] = []

    def second() -> None:
        with pytest.raises(LeaseBusy) as caught, hold("customer:1"):
            pytest.fail("the body ran without the lease")  # redis-py 621: it did  # locks L22
        refused.append(caught.value)

    with hold("customer:1") as lease, in_thread(second):
        pass
    assert refused[0].holder == lease.holder
    assert timedelta(0) < refused[0].retry_after <= timedelta(seconds=60)


def test_waiting_caller_gets_the_lease_after_its_release() -> None:
    got: list[int] = []

    def second() -> None:
        with hold("customer:1", wait=timedelta(seconds=10)) as lease:
            got.append(lease.token)

    with ExitStack() as stack, hold("customer:1") as lease:
        stack.enter_context(in_thread(second))
        assert not got
    assert [token > lease.token for token in got] == [True]


def test_lease_outlives_its_ttl_many_times_while_renewed(redis: Any) -> None:
    # outbox B46, B58
    with hold("customer:1", ttl=SHORT) as lease:
        first = lease.deadline
        wait_until(lambda: lease.deadline > first + 3 * SHORT.total_seconds())
        lease.check()
        assert redis.pttl(key_of("customer:1")) > 0
    assert not Incident.objects.exists()


def test_lease_is_abandoned_when_renewal_finds_another_holder() -> None:  # locks L25
    # locks L38
    with pytest.raises(LeaseLost) as lost, hold("customer:1", ttl=SHORT) as lease:
        steal("customer:1")
        wait_until(lambda: not lease.is_held)
        lease.check()
    assert lost.value.token == lease.token
    incident = wait_until(lambda: Incident.objects.filter(token=lease.token).first())
    assert incident is not None
    assert (incident.detector, incident.fate) == (Incident.Detector.RENEWAL_REFUSED, Incident.Fate.RUNNING)


def test_body_that_ended_well_but_lost_its_lease_raises() -> None:
    with pytest.raises(LeaseLost), hold("customer:1", ttl=SHORT) as lease:
        steal("customer:1")
        wait_until(lambda: not lease.is_held)


def test_release_after_expiry_leaves_the_successors_key(redis: Any) -> None:  # locks L12 L14 L15
    # outbox B49
    with pytest.raises(LeaseLost), hold("customer:1", ttl=SHORT) as lease:
        token = steal("customer:1")
        wait_until(lambda: not lease.is_held)
    assert redis.get(key_of("customer:1")).endswith(f":{token}".encode())


def test_release_twice_is_quiet_and_no_incident() -> None:  # locks L18
    # outbox B53
    with hold("customer:1") as lease:
        pass
    lease.release()
    assert not Incident.objects.exists()


def test_own_error_of_the_body_is_never_masked() -> None:  # locks L20
    with pytest.raises(ZeroDivisionError), hold("customer:1", ttl=SHORT) as lease:
        steal("customer:1")
        wait_until(lambda: not lease.is_held)
        _ = 1 / 0


def test_token_goes_up_when_redis_forgot_everything(redis: Any) -> None:  # locks L01 L02
    with hold("customer:1") as first:
        pass
    redis.flushall()
    Fence.objects.filter(resource="customer:1").update(token=first.token + 10**12)
    with hold("customer:1") as second:
        assert second.token > first.token + 10**12


def test_lease_goes_on_when_redis_forgets_it_in_mid_hold(redis: Any) -> None:
    with hold("customer:1", ttl=SHORT) as lease:
        redis.flushall()
        wait_until(lambda: redis.get(key_of("customer:1")) is not None)
        assert redis.get(key_of("customer:1")) == f"{lease.holder}:{lease.token}".encode()
        before = lease.deadline
        wait_until(lambda: lease.deadline > before)
        lease.check()
    incident = wait_until(lambda: Incident.objects.filter(token=lease.token).first())
    assert incident is not None
    assert incident.detector == Incident.Detector.KEY_GONE


def test_redis_that_forgets_again_and_again_still_lets_the_job_finish(redis: Any) -> None:
    with hold("customer:1", ttl=SHORT) as lease:
        for _ in range(4):
            redis.flushall()
            before = lease.deadline
            wait_until(lambda before=before: lease.deadline > before)  # type: ignore[misc]
        lease.check()


def test_lost_reply_of_registration_is_recognised_as_ones_own() -> None:
    from leases.process import ProcessIdentity

    ours = fence.Registration("customer:1", 7, "a" * 32, 1000, ProcessIdentity.own(), "")
    assert fence.register(ours, lock_timeout_ms=1000, using="default") == []
    assert fence.register(ours, lock_timeout_ms=1000, using="default") == []
    with pytest.raises(fence.Refused):
        fence.register(replace(ours, holder="b" * 32), lock_timeout_ms=1000, using="default")


def test_successor_finds_the_unreleased_record_of_a_crashed_holder() -> None:
    steal("customer:1")
    get_redis_connection("leases").delete(key_of("customer:1"))
    with hold("customer:1"):
        incident = Incident.objects.get()
    assert (incident.detector, incident.fate) == (Incident.Detector.UNRELEASED_RECORD, Incident.Fate.UNKNOWN)
    assert LeaseRecord.objects.get(token=incident.token).end == LeaseRecord.End.EXPIRED


def test_asking_again_in_the_same_thread_gives_the_same_lease() -> None:  # locks L08
    with hold("customer:1") as outer:
        with hold("customer:1") as inner:
            assert inner is outer
        outer.check()
    assert LeaseRecord.objects.count() == 1


def test_key_of_a_holder_whose_clock_ran_ahead_is_cut_to_the_longest_lease(redis: Any, settings: Any) -> None:
    settings.LEASES_MAX_TTL = timedelta(seconds=90)
    redis.set(key_of("customer:1"), "a" * 32 + ":5", px=86_400_000)
    with pytest.raises(LeaseBusy) as busy, hold("customer:1"):
        pass
    assert busy.value.retry_after == timedelta(seconds=90)
    assert 0 < redis.pttl(key_of("customer:1")) <= 90_000


def test_scripts_survive_a_script_flush(redis: Any) -> None:  # locks L59
    with hold("customer:1", ttl=SHORT) as lease:
        redis.script_flush()
        before = lease.deadline
        wait_until(lambda: lease.deadline > before)
        redis.script_flush()
    assert live(["customer:1"]) == {}


def test_lease_held_for_too_long_is_abandoned(settings: Any) -> None:  # locks L32
    settings.LEASES_MAX_HOLD = timedelta(milliseconds=900)
    with pytest.raises(LeaseLost), hold("customer:1", ttl=SHORT) as lease:
        wait_until(lambda: not lease.is_held)
        lease.check()


def test_lease_held_for_half_of_what_is_allowed_is_warned_of_once(
    settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.LEASES_MAX_HOLD = timedelta(seconds=2)

    def warnings() -> int:
        return [getattr(record, "event", "") for record in caplog.records].count("lease.long")

    with hold("customer:1", ttl=SHORT) as lease:
        assert not warnings()
        wait_until(warnings)
        deadline = lease.deadline
        wait_until(lambda: lease.deadline > deadline)
    assert warnings() == 1


def test_lease_of_a_thread_that_died_is_no_longer_renewed(redis: Any) -> None:  # locks L32
    from leases.acquiring import acquire
    from leases.stopping import Job

    leaked: list[Any] = []
    with in_thread(lambda: leaked.append(acquire("customer:1", ttl=SHORT, using="default", job=Job()))):
        pass
    wait_until(lambda: not leaked[0].is_held)
    wait_until(lambda: redis.get(key_of("customer:1")) is None)


def test_lease_that_was_dropped_without_release_is_no_longer_renewed(redis: Any) -> None:
    from leases.acquiring import acquire
    from leases.stopping import Job

    acquire("customer:1", ttl=SHORT, using="default", job=Job())
    wait_until(lambda: redis.get(key_of("customer:1")) is None)


def test_forked_child_owns_nothing(redis: Any) -> None:
    import os

    with hold("customer:1") as lease:
        connection.close()
        pid = os.fork()
        if pid == 0:
            try:
                refused = False
                try:
                    lease.check()
                except LeaseLost:
                    refused = True
                lease.release()
                os._exit(0 if refused and current_lease() is None else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert redis.get(key_of("customer:1")) is not None
        lease.check()


def test_waiter_is_woken_by_the_release_not_by_its_poll(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # outbox B54
    monkeypatch.setattr("leases.acquiring._LONGEST_WAIT_S", 60.0)
    got: list[int] = []
    waiting = Event()

    def second() -> None:
        waiting.set()
        with hold("customer:1", wait=timedelta(seconds=60)) as lease:
            got.append(lease.token)

    with ExitStack() as stack, hold("customer:1"):
        stack.enter_context(in_thread(second))
        waiting.wait(5)
        wait_until(lambda: get_redis_connection("leases").pubsub_numsub(key_of("customer:1"))[0][1] == 1)
    assert len(got) == 1


def test_waiter_gives_up_after_its_bound_and_takes_nothing(redis: Any) -> None:
    steal("customer:1")
    with pytest.raises(LeaseBusy), hold("customer:1", wait=timedelta(milliseconds=200)):
        pass
    assert redis.get(key_of("customer:1")).startswith(b"f" * 32)


def test_linger_keeps_others_out_after_a_clean_end_only() -> None:
    with hold("customer:1", linger=timedelta(seconds=30)):
        pass
    with pytest.raises(LeaseBusy), hold("customer:1"):
        pass
    with pytest.raises(ZeroDivisionError), hold("customer:2", linger=timedelta(seconds=30)):
        _ = 1 / 0
    with hold("customer:2"):
        pass


def test_lock_delay_keeps_the_key_after_an_expiry_but_not_after_a_release(settings: Any, redis: Any) -> None:
    settings.LEASES_LOCK_DELAY = timedelta(seconds=5)
    with hold("customer:1", ttl=SHORT) as lease:
        assert redis.pttl(key_of("customer:1")) > 5_000
        assert lease.remaining() <= SHORT
    assert redis.get(key_of("customer:1")) is None


def test_other_thread_works_under_a_lease_only_when_it_is_lent() -> None:
    def without() -> None:
        assert current_lease("customer:1") is None

    def with_it() -> None:
        with lent(lease):
            assert current_lease("customer:1") is lease
        assert current_lease("customer:1") is None

    with hold("customer:1") as lease:
        with in_thread(without):
            pass
        with in_thread(with_it):
            pass


def test_body_does_not_run_when_the_lease_is_lost_on_its_way_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "keep", lambda lease: lease.lose(Incident.Detector.RENEWAL_REFUSED))
    with pytest.raises(LeaseLost), hold("customer:1"):
        raise AssertionError("the body ran")


def test_key_put_back_is_not_renewed_before_the_fence_has_said_whose_it_is(
    redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_reach(*args: Any, **kwargs: Any) -> int:
        raise OperationalError("the database is away")

    with pytest.raises(LeaseLost), hold("customer:1", ttl=SHORT) as lease:
        monkeypatch.setattr(fence, "current", out_of_reach)
        redis.delete(key_of("customer:1"))
        wait_until(lambda: redis.get(key_of("customer:1")) is not None)
        deadline = lease.deadline
        wait_until(lambda: not lease.is_held)
        assert lease.deadline == deadline


def test_generator_that_is_closed_in_another_thread_leaves_no_lease_behind_in_its_own() -> None:
    """As a streamed response is; its thread would be told for ever that it lost the lease."""

    def rows() -> Generator[int]:
        with hold("customer:1"):
            yield 1

    stream = rows()
    assert next(stream) == 1
    with in_thread(stream.close):
        pass
    assert current_lease("customer:1") is None
    with hold("customer:1") as lease:
        assert list(lease.job._running) == [lease]


@pytest.mark.parametrize("when", [1, 2])
def test_exception_from_outside_that_lands_in_the_end_does_not_lock_the_thread_out(
    when: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left in the thread's books, the lease that ended would be the answer to every later request of this thread."""
    ended, calls = Job.ended, itertools.count(1)

    def interrupted(job: Job, lease: Lease, thread_id: int) -> None:
        if next(calls) == when:
            raise KeyboardInterrupt
        ended(job, lease, thread_id)

    monkeypatch.setattr(Job, "ended", interrupted)
    with pytest.raises(KeyboardInterrupt), hold("customer:1"):
        pass
    with hold("customer:1") as lease:
        assert list(lease.job._running) == [lease]
