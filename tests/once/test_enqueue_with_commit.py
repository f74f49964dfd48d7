"""A job that is enqueued by a transaction: a real drainer hands it to the broker, and real workers run it."""

from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from django.db import transaction
from django.db.models.functions import Now

from outbox import publish
from outbox.models import Message, State
from tests.jobs import actors
from tests.once.conftest import Jobs
from tests.servers.processes import Processes, RunningProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _job_channel(settings: Any) -> None:
    settings.OUTBOX_CHANNELS = {"job": {"BACKEND": "outbox.channels.job.JobChannel"}}


def enqueue(actor: "dramatiq.Actor[..., Any]", name: str) -> None:
    publish("job", {"actor": actor.actor_name, "args": [name]}, dedupe_key=f"{actor.actor_name}:{name}")


def drain(processes: Processes, jobs: Jobs, **env: str) -> RunningProcess:
    env = {**jobs.env, **env, "DJANGO_SETTINGS_MODULE": "tests.once.faulty_settings"}
    return processes.start("drain_outbox", "--watch", "--channel", "job", env=env)


def is_sent() -> bool:
    return not Message.objects.exclude(state=State.SENT).exists()


def test_job_runs_if_its_transaction_commits_and_never_if_it_rolls_back(jobs: Jobs, processes: Processes) -> None:
    # outbox C76, D18
    with suppress(ZeroDivisionError), transaction.atomic():
        enqueue(actors.plain, "rolled back")
        1 / 0  # noqa: B018
    with transaction.atomic():
        enqueue(actors.plain, "committed")
    drain(processes, jobs)
    jobs.start(1, 2)
    wait_until(lambda: actors.effects("committed") == 1, 60)
    wait_until(lambda: is_sent() and jobs.is_done(), 20)
    assert Message.objects.count() == 1
    assert actors.effects("rolled back") == 0


@pytest.mark.parametrize(("actor", "effects"), [(actors.welcome, 1), (actors.plain, 2)], ids=["once", "plain"])
def test_job_whose_drainer_dies_between_send_and_mark_takes_effect_once_if_it_is_once(
    jobs: Jobs, processes: Processes, tmp_path: Path, actor: "dramatiq.Actor[..., Any]", effects: int
) -> None:
    with transaction.atomic():
        enqueue(actor, "ada")
    marker = tmp_path / "marker"
    killed = drain(processes, jobs, FAULT_STEP="outbox.handed_over", FAULT_MARKER=str(marker))
    wait_until(marker.exists, 30)
    killed.wait()
    assert Message.objects.get().state == State.SENDING  # nobody knows that the broker has it
    worker = jobs.start(1, 2)
    wait_until(lambda: actors.effects("ada") == 1, 60)
    Message.objects.update(claimed_until=Now() - timedelta(seconds=1))  # the claim of the killed one has ended
    drain(processes, jobs)
    wait_until(is_sent, 60)
    wait_until(lambda: actors.effects("ada") == effects and jobs.is_done(), 30)
    if effects == 1:
        worker.wait_for_event("receipt.again", key="welcome:ada")
        assert actors.effects("ada") == 1
