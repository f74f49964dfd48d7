"""`once()` in real worker processes: the Resque question, crashes, and what the broker does twice."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leases import reopen
from leases.models import DeadLetter, Receipt
from tests.jobs import actors
from tests.jobs.models import Effect
from tests.once.conftest import Jobs
from tests.servers.processes import RunningProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def finished(runs: RunningProcess, number: int) -> Callable[[], bool]:
    """Say whether as many runs of @once jobs have ended, first or again."""
    return lambda: len(runs.events("receipt.done")) + len(runs.events("receipt.again")) >= number


def test_thousand_enqueues_before_during_and_after_give_one_effect(jobs: Jobs, redis: Any, gate: Path) -> None:
    # outbox B45
    """A lock that is free once the job starts, or covers only what is queued, lets others through."""
    for _ in range(500):
        jobs.send(actors.slow, "ada")
    gate.touch()
    workers = jobs.start(2, 4)
    wait_until(lambda: queue_is_waiting_for(workers), 30)
    for _ in range(300):  # while it runs
        jobs.send(actors.slow, "ada")
    gate.unlink()
    wait_until(finished(workers, 800), 60)
    assert actors.effects("ada") == 1
    for _ in range(200):  # after it ended
        jobs.send(actors.slow, "ada")
    wait_until(finished(workers, 1000), 60)
    wait_until(jobs.is_done)
    assert actors.effects("ada") == 1
    assert_one_ran_and_999_were_quiet(workers)


def queue_is_waiting_for(workers: RunningProcess) -> bool:
    """Say whether a first run is under way: others have waited for it and went back to the queue."""
    return bool(workers.events("job.put_back"))


def assert_one_ran_and_999_were_quiet(workers: RunningProcess) -> None:
    assert Receipt.objects.get().asked_again == 999
    assert (len(workers.events("receipt.done")), len(workers.events("receipt.again"))) == (1, 999)
    assert len({event["process"] for event in workers.events("receipt.again")}) == 2
    assert [event for event in workers.events() if event["level"] not in ("DEBUG", "INFO")] == []
    assert not DeadLetter.objects.exists()


@pytest.mark.parametrize("workers_wait", [False, True], ids=["queued-before", "enqueued-while-workers-run"])
def test_thousand_enqueues_of_a_quick_job_give_one_effect(jobs: Jobs, redis: Any, workers_wait: bool) -> None:
    # outbox B44
    """A job of one millisecond, on two processes."""
    if workers_wait:
        workers = jobs.start(2, 4)
        wait_until(lambda: workers.output().count("ready for action") == 2, 30)
    for _ in range(1000):
        jobs.send(actors.quick, "ada")
    if not workers_wait:
        workers = jobs.start(2, 4)
    wait_until(finished(workers, 1000), 60)
    wait_until(jobs.is_done)
    assert actors.effects("ada") == 1
    assert_one_ran_and_999_were_quiet(workers)


def test_lock_around_a_quick_job_lets_the_second_payload_run(jobs: Jobs, redis: Any) -> None:  # outbox B44
    """The red side: `SET NX` + `DEL`, as in the second story, keeps two apart, not the next one from running."""

    def has_run(times: int) -> bool:
        return actors.effects("ada") == times and not redis.exists("lock:ada")

    jobs.start(2, 4)
    jobs.send(actors.locked, "ada")
    wait_until(lambda: has_run(1), 60)
    jobs.send(actors.locked, "ada")
    wait_until(lambda: has_run(2), 60)


def test_killed_worker_leaves_the_key_free_and_its_message_runs_elsewhere(jobs: Jobs, gate: Path, redis: Any) -> None:
    # outbox B47, D3, E5
    """After a kill the lock stayed, and the job could never be enqueued again."""
    gate.touch()
    jobs.send(actors.slow, "ada")
    first = jobs.start(1, 1)
    wait_until(lambda: somebody_idles_in_a_transaction(), 30)
    first.kill()
    gate.unlink()
    second = jobs.start(1, 1)
    jobs.send(actors.slow, "ada")
    wait_until(finished(second, 2), 60)  # the one that was lost comes back when its worker is found dead
    assert actors.effects("ada") == 1
    assert Receipt.objects.get().asked_again == 1


def somebody_idles_in_a_transaction() -> bool:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND state = 'idle in transaction' AND pid <> pg_backend_pid()"
        )
        return bool(cursor.fetchone()[0])


def test_failures_after_the_effect_are_rolled_back_and_retried(jobs: Jobs, redis: Any) -> None:
    jobs.send(actors.flaky, "ada", 3)
    workers = jobs.start(1, 2)
    wait_until(finished(workers, 1), 30)
    assert actors.effects("ada") == 1
    jobs.send(actors.flaky, "ada", 3)
    wait_until(finished(workers, 2), 30)
    assert actors.effects("ada") == 1


def test_same_message_in_two_workers_takes_effect_once(jobs: Jobs) -> None:
    # outbox A22, B56, C75, D7
    """The broker hands a message that is being worked on to another worker."""
    message = actors.welcome.message("ada")
    for _ in range(20):
        jobs.broker.enqueue(message)
    workers = jobs.start(2, 4)
    wait_until(finished(workers, 20), 30)
    assert actors.effects("ada") == 1


@pytest.mark.parametrize("jobs", ["redis"], indirect=True)
def test_worker_frozen_before_it_acknowledged_has_its_message_run_elsewhere_without_effect(
    jobs: Jobs, redis: Any, tmp_path: Path
) -> None:
    # outbox D1, E1
    marker = tmp_path / "marker"
    frozen = jobs.start(
        1,
        1,
        DJANGO_SETTINGS_MODULE="tests.once.faulty_settings",
        FAULT_STEP="receipt.done",
        FAULT_SIGNAL="SIGSTOP",
        FAULT_MARKER=str(marker),
    )
    jobs.send(actors.welcome, "ada")
    wait_until(marker.exists, 30)
    other = jobs.start(1, 1)
    other.wait_for_event("receipt.again", 60, key="welcome:ada")
    frozen.thaw()  # its acknowledgement finds that the message is no longer its own
    wait_until(jobs.is_done)
    assert actors.effects("ada") == 1
    assert Receipt.objects.get().asked_again == 1


def test_many_keys_interleaved_give_exactly_one_effect_each(jobs: Jobs) -> None:
    for number in range(300):
        jobs.send(actors.welcome, f"user {number}")
        jobs.send(actors.welcome, f"user {number // 2}")
    workers = jobs.start(2, 4)
    wait_until(finished(workers, 600), 60)
    assert Effect.objects.count() == 300
    assert len(set(Effect.objects.values_list("name", flat=True))) == 300


def lines(file: Path) -> int:
    return len(file.read_text().splitlines())


def test_effect_outside_parks_when_the_process_dies_in_between(jobs: Jobs, gate: Path, file: Path, redis: Any) -> None:
    gate.touch()
    jobs.send(actors.charge, "ada")
    first = jobs.start(1, 1)
    wait_until(lambda: lines(file) == 1, 30)
    first.kill()
    gate.unlink()
    redis.delete("lease:{once:charge:ada}")  # the lease expires
    second = jobs.start(1, 1)
    jobs.send(actors.charge, "ada")
    wait_until(lambda: second.events("receipt.again"), 30)
    assert lines(file) == 1
    receipt = Receipt.objects.get()
    assert receipt.state == "parked"
    assert "without saying" in receipt.reason
    reopen("charge:ada", by="ada", reason="the bank says that nothing arrived")
    jobs.send(actors.charge, "ada")
    wait_until(lambda: second.events("receipt.done"), 30)
    assert lines(file) == 2
    assert Receipt.objects.get().outcome == "charged"


def test_effect_outside_is_retried_when_the_process_dies_in_between(
    jobs: Jobs, gate: Path, file: Path, redis: Any
) -> None:
    gate.touch()
    jobs.send(actors.index, "ada")
    first = jobs.start(1, 1)
    wait_until(lambda: lines(file) == 1, 30)
    first.kill()
    gate.unlink()
    redis.delete("lease:{once:index:ada}")
    second = jobs.start(1, 1)
    jobs.send(actors.index, "ada")
    wait_until(lambda: second.events("receipt.done"), 30)
    assert lines(file) == 2
    receipt = Receipt.objects.get()
    assert (receipt.state, receipt.attempts) == ("done", 2)


def test_effect_outside_runs_once_while_asked_for_many_times(jobs: Jobs, gate: Path, file: Path) -> None:
    gate.touch()
    for _ in range(10):
        jobs.send(actors.charge, "ada")
    workers = jobs.start(2, 2)
    wait_until(lambda: lines(file) == 1 and queue_is_waiting_for(workers), 30)
    gate.unlink()
    wait_until(finished(workers, 10), 60)
    assert lines(file) == 1
    assert Receipt.objects.get().asked_again == 9


def test_run_outside_that_fails_parks_unless_it_says_that_nothing_was_done(jobs: Jobs, file: Path, redis: Any) -> None:
    workers = jobs.start(1, 2)
    jobs.send(actors.charge, "ada", "after")
    parked = workers.wait_for_event("receipt.parked", 30)
    assert parked["level"] == "ERROR"
    assert "TimeoutError" in Receipt.objects.get(key="charge:ada").reason
    jobs.send(actors.charge, "bob", "before")
    wait_until(lambda: DeadLetter.objects.count() == 1, 30)  # retried as often as it may be, then dead
    assert not Receipt.objects.filter(key="charge:bob").exists()
    assert lines(file) == 1


def test_end_of_a_frozen_run_outside_is_believed_when_it_comes_late(
    jobs: Jobs, gate: Path, file: Path, redis: Any
) -> None:
    gate.touch()
    jobs.send(actors.charge, "ada")
    first = jobs.start(1, 1, dramatiq_queue_prefetch="1")
    wait_until(lambda: lines(file) == 1, 30)
    first.freeze()
    redis.delete("lease:{once:charge:ada}")
    jobs.start(1, 1)
    jobs.send(actors.charge, "ada")
    wait_until(lambda: Receipt.objects.get().state == "parked", 30)
    gate.unlink()
    first.thaw()
    wait_until(lambda: Receipt.objects.get().state == "done", 30)
    assert lines(file) == 1
    assert Receipt.objects.get().outcome == "charged"
