"""`manage.py workload`: depth, age and a number of workers; and dead letters, which are kept."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import dramatiq
import pytest
import redis
from django.core.management import call_command
from django.core.management.base import CommandError
from redis.backoff import NoBackoff
from redis.retry import Retry

from leases.jobs import dead_letters, workload
from leases.jobs.errors import AlreadyDone, AlreadyReplayed
from leases.models import DeadLetter
from tests.jobs import actors
from tests.jobs.actors import QUEUE
from tests.once.conftest import Jobs
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def only_letter() -> DeadLetter | None:
    return DeadLetter.objects.first()


def test_depth_age_and_suggestion_follow_the_work(jobs: Jobs) -> None:
    assert (jobs.state().waiting, jobs.state().oldest_age_s, jobs.state().suggested_workers) == (0, 0.0, 1)
    for number in range(40):
        jobs.send(actors.serial, "a", f"{number}", 0.05)
    jobs.broker.enqueue(actors.plain.message("later"), delay=3_600_000)
    wait_until(lambda: jobs.state().waiting == 40)
    wait_until(lambda: (jobs.state().oldest_age_s or 0) > 1)
    assert jobs.state().delayed == 1
    per_second = workload.measure(broker=jobs.broker, queues=[QUEUE], drain_within=timedelta(seconds=4))[0]
    assert per_second.suggested_workers == 10  # 40 jobs that are taken for one second each


@pytest.mark.parametrize("arguments", ["--drain-within nan", "--drain-within 0", "--min -1", "--min 9 --max 8"])
def test_numbers_that_cannot_be_meant_are_refused(arguments: str) -> None:
    with pytest.raises(CommandError):
        call_command("workload", *arguments.split())


def test_suggestion_learns_how_long_jobs_run(jobs: Jobs) -> None:
    for number in range(10):
        jobs.send(actors.retry_later, f"{number}", f"{number}", 0.3)
    worker = jobs.start(1, 2)
    wait_until(lambda: jobs.state().mean_run_s is not None and jobs.is_done(), 40)
    worker.terminate()
    worker.wait(20)
    state = jobs.state()
    assert state.mean_run_s is not None
    assert 0.3 <= state.mean_run_s < 3
    assert state.busy_workers > 0


def test_command_prints_json_metrics_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    actors.plain.send("a")
    call_command("workload", "--json", "--queues", QUEUE)
    row = json.loads(capsys.readouterr().out)[0]
    assert (row["queue"], row["waiting"], row["suggested_workers"]) == (QUEUE, 1, 1)
    call_command("workload", "--metrics", "--queues", QUEUE)
    out = capsys.readouterr().out
    assert f'jobs_waiting{{queue="{QUEUE}"}} 1' in out
    assert out.count("# TYPE") == 8
    call_command("workload", "--queues", QUEUE)
    assert QUEUE in capsys.readouterr().out


def test_broker_that_is_away_is_told_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors.plain.broker, "client", redis.Redis(port=1, retry=Retry(NoBackoff(), 0)))
    with pytest.raises(CommandError, match=r"connecting to localhost:1\. Connection refused"):
        call_command("workload")


def test_duplicates_show_what_is_queued_twice_and_what_was_asked_for_again(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ["ada", "ada", "bob", "ada"]:
        actors.welcome.send(name)
    actors.plain.send("x")
    actors.plain.send("x")
    actors.welcome("cyd")
    actors.welcome("cyd")
    call_command("workload", "--duplicates", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["queued"] == [
        {"queue": QUEUE, "job": "welcome:ada", "messages": 3},
        {"queue": QUEUE, "job": "plain('x')", "messages": 2},
    ]
    assert found["asked_again"] == [{"key": "welcome:cyd", "times": 1, "state": "done"}]
    call_command("workload", "--duplicates")
    assert "3 x welcome:ada" in capsys.readouterr().out


def test_what_the_broker_cannot_tell_is_null_and_no_metric(jobs: Jobs, capsys: pytest.CaptureFixture[str]) -> None:
    """RabbitMQ counts what waits, not what is being worked on, and does not show the message at the head."""
    jobs.send(actors.plain, "a")
    if not jobs.is_redis:
        wait_until(lambda: jobs.broker.get_queue_message_counts(QUEUE)[0] == 1)
    call_command("workload", "--json", "--queues", QUEUE)
    row = json.loads(capsys.readouterr().out)[0]
    call_command("workload", "--metrics", "--queues", QUEUE)
    told = capsys.readouterr().out
    assert row["waiting"] == 1
    if jobs.is_redis:
        assert row["running"] == 0
        assert row["oldest_age_s"] >= 0
    else:
        assert (row["running"], row["oldest_age_s"]) == (None, None)
    assert ("\njobs_running{" in told) == ("\njobs_oldest_age_seconds{" in told) == jobs.is_redis


def test_job_that_fails_for_good_is_kept_with_its_reason(jobs: Jobs, file: Path) -> None:
    # outbox D14
    """Dead letters are deleted unseen after a week."""
    jobs.send(actors.charge, "bob", "before")
    jobs.start(1, 2)
    letter = wait_until(only_letter, 60)
    assert letter
    assert (letter.actor, letter.queue, letter.args, letter.key) == ("charge", QUEUE, ["bob", "before"], "charge:bob")
    assert letter.reason == "NothingDone: refused"
    assert "Traceback" in letter.traceback


def test_dead_letter_is_replayed_once_and_not_when_its_job_was_done_since(jobs: Jobs, gate: Path) -> None:
    # outbox D14
    gate.touch()
    jobs.send(actors.picky, "ada")
    jobs.send(actors.picky, "ada")
    worker = jobs.start(1, 2)
    wait_until(lambda: DeadLetter.objects.count() == 2, 60)
    worker.terminate()
    worker.wait(20)
    gate.unlink()
    first, second = DeadLetter.objects.order_by("id")
    dead_letters.replay(first, by="ada")
    with pytest.raises(AlreadyReplayed):
        dead_letters.replay(first, by="bob")
    first.refresh_from_db()
    assert (first.replayed_by, first.replayed_at is not None) == ("ada", True)
    wait_until(lambda: jobs.state().waiting == 1)
    worker = jobs.start(1, 2)
    wait_until(lambda: actors.effects("ada") == 1, 60)
    with pytest.raises(AlreadyDone):
        dead_letters.replay(second, by="bob")
    wait_until(jobs.is_done)
    assert len(worker.events("receipt.done")) == 1
    assert not worker.events("receipt.again")


def test_replay_of_a_job_that_was_done_meanwhile_is_refused() -> None:
    message: Any = dramatiq.MessageProxy(actors.welcome.message("ada"))
    message.stuff_exception(RuntimeError("as told"))
    dead_letters.record(message, dramatiq.get_broker())
    actors.welcome("ada")
    letter = DeadLetter.objects.get()
    with pytest.raises(AlreadyDone):
        dead_letters.replay(letter, by="ada")
    assert letter.replayed_at is None


def test_replay_that_the_broker_refuses_leaves_the_letter_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    dead_letters.record(dramatiq.MessageProxy(actors.plain.message("ada")), dramatiq.get_broker())

    def fail(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("as told")

    monkeypatch.setattr(dramatiq.get_broker(), "enqueue", fail)
    with pytest.raises(ConnectionError):
        dead_letters.replay(DeadLetter.objects.get(), by="ada")
    monkeypatch.undo()
    dead_letters.replay(DeadLetter.objects.get(), by="ada")


def test_message_of_an_actor_that_nobody_knows_is_kept(jobs: Jobs) -> None:
    # outbox D6
    """A job for a newer version of the code must not vanish in an older worker."""
    unknown: dramatiq.Message[Any] = dramatiq.Message(
        queue_name=QUEUE, actor_name="from_tomorrow", args=(1, "\x00"), kwargs={}, options={}
    )
    jobs.broker.enqueue(unknown)
    jobs.start(1, 1)
    letter = wait_until(only_letter, 40)
    assert letter
    assert letter.actor == "from_tomorrow"
    assert "ActorNotFound" in letter.reason


def test_message_that_cannot_be_read_does_not_hide_the_others(redis: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The tools ended with a traceback, and the admin said that the broker does not answer."""
    for name in ["first", "second"]:
        redis.hset(f"dramatiq:{QUEUE}.msgs", name, b"no message")
        redis.rpush(f"dramatiq:{QUEUE}", name)
    actors.plain.send("x")
    actors.plain.send("x")
    call_command("workload", "--json", "--queues", QUEUE)
    assert json.loads(capsys.readouterr().out)[0]["waiting"] == 4
    call_command("workload", "--duplicates", "--json")
    found = {row["job"]: row["messages"] for row in json.loads(capsys.readouterr().out)["queued"]}
    assert found == {"(cannot be read)": 2, "plain('x')": 2}


def put(jobs: Jobs, data: bytes, name: str) -> None:
    """Have the queue hold what is no message."""
    if jobs.is_redis:
        jobs.broker.client.hset(f"dramatiq:{QUEUE}.msgs", name, data)
        jobs.broker.client.rpush(f"dramatiq:{QUEUE}", name)
    else:
        jobs.broker.declare_queue(QUEUE, ensure=True)
        jobs.broker.channel.basic_publish(exchange="", routing_key=QUEUE, body=data)


def test_messages_that_cannot_be_read_stop_no_other_and_are_dead_letters(jobs: Jobs) -> None:
    """Two of them in one fetch ended the consumer's thread for good, and the broker alone knew of them."""
    for number in range(3):
        put(jobs, b"no message", f"{number}")
    jobs.send(actors.plain, "behind them")
    worker = jobs.start(1, 1)
    wait_until(lambda: actors.effects("behind them") == 1, 40)
    wait_until(lambda: DeadLetter.objects.count() == 3, 40)
    letter = DeadLetter.objects.first()
    assert letter
    assert (letter.queue, letter.actor, letter.args) == (QUEUE, "(cannot be read)", ["b'no message'"])
    assert letter.reason.startswith("DecodeError: failed to decode message 'no message'")
    wait_until(jobs.is_done)
    worker.terminate()
    assert worker.wait(20) == 0
