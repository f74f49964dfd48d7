"""`leased(on_conflict=...)`: what becomes of a job while another holder has its resource."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any

import dramatiq
import pytest
from django.db import connection
from dramatiq import Worker
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import Callbacks, CurrentMessage, Pipelines
from dramatiq.results import ResultMissing, Results
from dramatiq.results.backends import StubBackend

from leases import hold, leased
from leases.conf import conf
from leases.errors import LeaseBusy, LeaseLost
from leases.jobs.brokers.middleware import DatabaseConnections
from leases.jobs.messages import put_back
from leases.models import DeadLetter, Turn
from tests.jobs import actors
from tests.jobs.models import Effect
from tests.once.conftest import Jobs
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def busy(thing: str) -> Iterator[None]:
    """Hold the lease in the test's own process."""
    with hold(f"thing:{thing}"):
        yield


def done() -> list[str]:
    return list(Effect.objects.order_by("done_at").values_list("name", flat=True))


def overlaps() -> list[tuple[str, str]]:
    """Return pairs of runs that were under way at the same time."""
    runs = Effect.objects.order_by("began_at").values_list("name", "began_at", "done_at")
    return [(a, b) for (a, _, a_done), (b, b_began, _) in pairwise(runs) if b_began is None or b_began < a_done]


def test_default_goes_back_to_the_queue_until_the_resource_is_free(jobs: Jobs) -> None:
    # outbox B48
    workers = jobs.start(2, 2)
    with busy("a"):
        jobs.send(actors.retry_later, "a", "one")
        workers.wait_for_event("job.put_back", 30)
        assert not done()
    wait_until(lambda: done() == ["one"], 30)


def test_skip_ends_the_message_and_says_who_had_the_resource(jobs: Jobs, redis: Any) -> None:
    workers = jobs.start(1, 2)
    with hold("thing:a") as lease:
        jobs.send(actors.skip, "a", "one")
        skipped = workers.wait_for_event("job.skipped", 30)
    assert skipped["holder"] == lease.holder  # locks L74: "skipped because held by X"
    jobs.send(actors.skip, "a", "two")
    wait_until(lambda: done() == ["two"], 30)
    wait_until(jobs.is_done)
    assert not DeadLetter.objects.exists()


def test_wait_keeps_the_thread_and_runs_as_soon_as_the_resource_is_free(jobs: Jobs) -> None:
    workers = jobs.start(1, 2)
    with busy("a"):
        jobs.send(actors.wait, "a", "one")
        jobs.send(actors.wait, "b", "free")
        wait_until(lambda: done() == ["free"], 30)
    wait_until(lambda: done() == ["free", "one"], 5)
    assert not workers.events("job.put_back")


@pytest.mark.parametrize("policy", ["retry_later", "wait", "serial"])
def test_no_two_runs_overlap_and_none_is_left_out(jobs: Jobs, policy: str) -> None:
    actor = getattr(actors, policy)
    for number in range(8):
        jobs.send(actor, "a", f"{number}", 0.05)
    jobs.start(2, 2)
    wait_until(lambda: len(done()) == 8, 90)
    assert sorted(done()) == [f"{number}" for number in range(8)]
    assert not overlaps()


def test_serial_runs_in_the_order_of_arrival(jobs: Jobs) -> None:
    jobs.start(2, 4)
    with busy("a"):
        for number in range(12):
            jobs.send(actors.serial, "a", f"{number:02}", 0.02)
            wait_until(lambda: Turn.objects.count() == number + 1, 30)  # noqa: B023 - called before the next number
    wait_until(lambda: len(done()) == 12, 60)
    assert done() == [f"{number:02}" for number in range(12)]
    wait_until(lambda: not Turn.objects.exists())


def test_serial_job_that_fails_lets_the_next_one_go(jobs: Jobs) -> None:
    with busy("a"):
        jobs.start(1, 4)
        jobs.send(actors.serial, "a", "bad", 0.0, fail=True)
        wait_until(lambda: Turn.objects.count() == 1, 30)
        jobs.send(actors.serial, "a", "good")
        wait_until(lambda: Turn.objects.count() == 2, 30)
    wait_until(lambda: done() == ["good"], 30)


def test_serial_place_of_a_message_that_was_lost_is_passed_over(jobs: Jobs) -> None:
    from django.db import connection

    with connection.cursor() as cursor:  # its message went with the broker, long ago
        cursor.execute(
            "INSERT INTO leases_turn (resource, message_id, seen_at)"
            " VALUES ('thing:a', 'lost', clock_timestamp() - interval '2 minutes')"
        )
    jobs.send(actors.serial, "a", "next")
    jobs.start(1, 1)
    wait_until(lambda: done() == ["next"], 30)
    wait_until(lambda: not Turn.objects.exists())


@pytest.mark.parametrize("policy", ["retry_later", "skip", "serial"])
def test_outside_a_worker_the_caller_is_told(policy: str) -> None:
    @leased("thing:{thing}", on_conflict=policy)  # type: ignore[arg-type]  # the parameter is one of the names
    def job(thing: str) -> str:
        return thing

    assert job("a") == "a"
    from tests.once.test_once import in_thread

    with busy("a"):
        thread, got = in_thread(lambda: job("a"))
        thread.join(10)
    assert isinstance(got[0], LeaseBusy)


def test_mistakes_in_the_resource_show_when_the_module_is_imported() -> None:
    with pytest.raises(TypeError, match=r'write @leased\("\.\.\."\)'):
        leased(lambda number: None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="names 'nobody', which is no parameter"):
        leased("order:{nobody}")(lambda number: None)
    with pytest.raises(ValueError, match="names '', which is no parameter"):
        leased("order:{}")(lambda number: None)
    leased("order:{data[id]}:{data.size!r:>5}")(lambda data: None)


def test_mistakes_in_the_policy_show_when_the_module_is_imported() -> None:
    with pytest.raises(ValueError, match="on_conflict"):
        leased("a", on_conflict="hope")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="wait"):
        leased("a", on_conflict="wait")
    with pytest.raises(ValueError, match="wait"):
        leased("a", wait=timedelta(seconds=1))


def test_job_that_lost_its_lease_very_often_still_goes_back_to_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    message = actors.serial.message_with_options(args=("a", "x"), leases_losses=100)
    sent: list[float] = []
    monkeypatch.setattr("leases.jobs.messages.current_message", lambda: message)
    monkeypatch.setattr(dramatiq.get_broker(), "enqueue", lambda again, delay: sent.append(delay))
    put_back(LeaseLost("thing:a", token=1, reason="as told"), lost=True)
    assert 0 < sent[0] <= 1.5 * conf.MAX_RETRY_DELAY.total_seconds() * 1000


@pytest.mark.parametrize("operation", ["INSERT", "DELETE"])
def test_serial_job_survives_a_database_that_does_not_take_its_place(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the work it goes back to the queue; after the work, an error would have it done again."""

    @leased("thing:{thing}", on_conflict="serial")
    def job(thing: str) -> None:
        ran.append(thing)

    ran: list[str] = []
    sent: list[float] = []
    monkeypatch.setattr(actors.serial, "fn", job)
    monkeypatch.setattr("leases.jobs.messages.current_message", lambda: actors.serial.message("a", "x"))
    monkeypatch.setattr(dramatiq.get_broker(), "enqueue", lambda again, delay: sent.append(delay))
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'as told'; END $$;"
            f"CREATE TRIGGER refuse BEFORE {operation} ON leases_turn FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    try:
        job("a")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION refuse CASCADE")
    assert (ran, len(sent)) == (([], 1) if operation == "INSERT" else (["a"], 0))
    job("a")  # the next in the line does not wait for the place of one that is done
    assert (len(ran), len(sent)) == ((1, 1) if operation == "INSERT" else (2, 0))
    assert not Turn.objects.exists()


def test_what_follows_a_success_does_not_follow_a_job_that_was_put_back(
    settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # outbox E6
    """With Dramatiq's own pipelines, callbacks and results, for which a job that returns has succeeded."""
    settings.LEASES_RETRY_DELAY = timedelta(milliseconds=50)
    results = StubBackend()
    broker = StubBroker(
        middleware=[DatabaseConnections(), CurrentMessage(), Pipelines(), Callbacks(), Results(backend=results)]
    )
    before = dramatiq.get_broker()
    dramatiq.set_broker(broker)
    order: list[str] = []

    @dramatiq.actor(store_results=True, on_success="called_back")
    @leased("thing:{thing}")
    def first(thing: str) -> str:
        order.append("first")
        return thing

    @dramatiq.actor
    def piped(result: str) -> None:
        order.append(f"piped {result}")

    @dramatiq.actor
    def called_back(message: dict[str, Any], result: str) -> None:
        order.append(f"called back {result}")

    worker = Worker(broker, worker_threads=1, worker_timeout=50)
    worker.start()
    try:
        message = first.message("a")
        with busy("a"), caplog.at_level(logging.INFO, "leases"):
            (message | piped.message_with_options()).run()
            wait_until(lambda: caplog.text.count("Back to the queue") > 1)
            with pytest.raises(ResultMissing):
                message.get_result(backend=results)
        wait_until(lambda: len(order) == 3)
        assert message.get_result(backend=results) == "a"
    finally:
        worker.stop()
        broker.close()
        dramatiq.set_broker(before)
    assert order[0] == "first"
    assert sorted(order[1:]) == ["called back a", "piped a"]
