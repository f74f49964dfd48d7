"""Workers that come and go in the middle of the work: nothing is lost, and what they held is free at once."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from leases import live
from leases.models import Receipt
from project.broker import make_broker
from tests.jobs import actors
from tests.jobs.models import Effect
from tests.once.conftest import Jobs
from tests.servers.processes import Processes, RunningProcess
from tests.servers.redis_server import PrivateRedis
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_sigterm_gives_back_what_was_not_begun_while_a_job_still_runs(jobs: Jobs, gate: Path, file: Path) -> None:
    # outbox D12
    gate.touch()
    for number in range(6):
        jobs.send(actors.index, f"{number}")
    leaving = jobs.start(1, 1, dramatiq_queue_prefetch="6")
    wait_until(lambda: file.read_text().count("\n") == 1, 30)
    wait_until(lambda: jobs.state().waiting == 0)
    leaving.terminate()
    wait_until(lambda: jobs.state().waiting == 5, 5)
    gate.unlink()
    assert leaving.wait(20) == 0
    assert jobs.state().waiting == 5
    jobs.start(1, 2)
    wait_until(lambda: Receipt.objects.filter(state="done").count() == 6, 30)
    assert sorted(file.read_text().split()) == [f"{number}" for number in range(6)]


def test_sigterm_frees_the_lease_and_the_message_of_a_job_that_is_cut_off(jobs: Jobs, gate: Path, file: Path) -> None:
    gate.touch()
    jobs.send(actors.index, "ada")
    leaving = jobs.start(1, 1, shutdown_timeout=1)
    wait_until(lambda: file.read_text().count("\n") == 1, 30)
    assert live(["once:index:ada"])
    leaving.terminate()
    leaving.wait(20)
    assert not live(["once:index:ada"])
    assert jobs.state().waiting == 1
    gate.unlink()
    jobs.start(1, 1)
    wait_until(lambda: Receipt.objects.filter(state="done").exists(), 30)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_lost_or_done_twice_while_workers_come_and_go(jobs: Jobs, number: signal.Signals) -> None:
    total = 400
    for index in range(total):
        jobs.send(actors.welcome, f"{index}")
    first = jobs.start(1, 2)
    wait_until(lambda: Effect.objects.count() > 20, 60)
    more = [jobs.start(1, 2), jobs.start(1, 2)]
    wait_until(lambda: all(worker.events("receipt.done") for worker in more) or Effect.objects.count() == total, 60)
    for worker in [first, more[0]]:
        end(worker, number)
    wait_until(lambda: Effect.objects.count() == total, 120)
    wait_until(jobs.is_done, 60)
    assert Effect.objects.values("name").distinct().count() == total == Receipt.objects.count()


def test_worker_process_that_is_killed_ends_all_with_an_error_for_the_supervisor(jobs: Jobs) -> None:
    # outbox D13
    workers = jobs.start(2, 1)
    wait_until(lambda: workers.output().count("ready for action") == 2, 30)
    ready = next(event for event in workers.events() if "ready for action" in event["message"])
    os.kill(ready["process"], signal.SIGKILL)
    assert workers.wait(40) != 0


def end(workers: RunningProcess, number: signal.Signals) -> None:
    if number == signal.SIGKILL:
        workers.kill()
    else:
        os.kill(workers.pid, number)
        workers.wait(30)


def test_sigterm_to_an_idle_worker_ends_it_within_seconds(jobs: Jobs) -> None:
    # outbox D25
    worker = jobs.start(1, 2)
    worker.wait_for_line("ready for action", 30)
    began = time.monotonic()
    worker.terminate()
    assert worker.wait(20) == 0
    assert time.monotonic() - began < 10
    assert not psutil.pid_exists(worker.pid)


@pytest.mark.parametrize("frozen", [False, True])
def test_sigterm_while_redis_is_away_ends_a_worker_within_seconds_and_loses_nothing(
    frozen: bool, processes: Processes, redis_server: PrivateRedis, gate: Path, file: Path
) -> None:
    """Its client rides out restarts of Redis; a worker that leaves need not: what it holds stands in Redis' records."""
    url = redis_server.url
    env = {"BROKER_URL": url, "REDIS_URL": url, "LEASES_REDIS_URL": url, "JOBS_GATE": str(gate), "JOBS_FILE": str(file)}
    command = ("rundramatiq", "--processes", 1, "--threads", 2, "--queues", actors.QUEUE, "--shutdown-timeout", 60)
    broker = make_broker(url)
    gate.touch()
    broker.enqueue(actors.flaky.message("fails", 1))
    for number in range(5):
        broker.enqueue(actors.slow.message(f"{number}"))
    broker.enqueue(actors.welcome.message("later"), delay=20_000)
    leaving = processes.start(*command, env={**env, "dramatiq_queue_prefetch": "6"})
    with redis_server.client() as client:
        wait_until(lambda: not client.llen(f"dramatiq:{actors.QUEUE}"), 30)
        wait_until(lambda: not client.llen(f"dramatiq:{actors.QUEUE}.DQ"), 30)
    redis_server.pause() if frozen else redis_server.kill()
    gate.unlink()  # of the two that run, one ends and cannot be acknowledged, one fails and cannot be retried
    wait_until(lambda: Effect.objects.count() == 1 and file.read_text() == "attempt\n", 30)
    leaving.terminate()
    assert leaving.wait(15) == 0
    redis_server.resume() if frozen else redis_server.restart()
    processes.start(*command, env=env)
    wait_until(lambda: Effect.objects.count() == 7, 60)
    with redis_server.client() as client:
        wait_until(lambda: not client.hlen(f"dramatiq:{actors.QUEUE}.msgs"), 30)
        assert not client.hlen(f"dramatiq:{actors.QUEUE}.DQ.msgs")
    assert Effect.objects.values("name").distinct().count() == 7
