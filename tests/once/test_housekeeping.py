"""Rescuing, reopening and pruning from the command line."""

import json
from datetime import timedelta
from typing import Any

import dramatiq
import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import override_settings
from django.utils import timezone

from leases.jobs import rescuing
from leases.jobs.rescuing import rescue
from leases.models import DeadLetter, Receipt, Reopening, Slot
from tests.jobs import actors
from tests.once.conftest import Jobs
from tests.once.test_admin import kill
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
HERE = "tests.once.test_housekeeping"


def find_two() -> int:
    actors.welcome.send("lost")
    actors.welcome.send("lost too")
    return 2


def fail() -> int:
    raise RuntimeError("as told")


def leave_a_transaction_open() -> int:
    connection.set_autocommit(False)
    connection.cursor().execute("SELECT 1")
    return 0


def write() -> int:
    actors.leave("rescued")
    return 1


def find_nothing() -> None:
    pass


def say_many() -> str:
    return "many"


def leave() -> int:
    raise SystemExit("as told")


def test_rescuers_do_not_touch_each_other() -> None:
    """One's open transaction swallowed the next one's rows, and one that exits ended the command."""
    names = ["leave_a_transaction_open", "write", "leave", "say_many", "find_nothing"]
    with override_settings(LEASES_RESCUERS=[f"{HERE}.{name}" for name in names]):
        rescued = rescue()
    connection.close()
    assert actors.effects("rescued") == 1
    assert list(rescued.values()) == [0, 1, None, None, 0]


def test_rescuer_that_hangs_is_named(monkeypatch: Any, caplog: pytest.LogCaptureFixture) -> None:
    """All others wait for it, and nothing said for which."""
    monkeypatch.setattr(rescuing, "_SLOW_S", 0.05)
    monkeypatch.setattr(f"{HERE}.find_nothing", lambda: bool(wait_until(lambda: "has not ended" in caplog.text)))
    with override_settings(LEASES_RESCUERS=[f"{HERE}.find_nothing"]):
        rescue()
    assert f"The rescuer {HERE}.find_nothing has run" in caplog.text


@override_settings(LEASES_RESCUERS=[f"{HERE}.fail", f"{HERE}.find_two"])
def test_rescuer_that_fails_stops_no_other_and_is_told(capsys: Any, redis: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        call_command("leases", "rescue", "--once", "--json")
    assert caught.value.code == 1
    assert json.loads(capsys.readouterr().out) == {f"{HERE}.fail": None, f"{HERE}.find_two": 2}
    assert redis.llen(f"dramatiq:{actors.QUEUE}") == 2


def find_undone() -> int:
    """Enqueue again whom the database knows to be owed a welcome."""
    undone = [name for name in ("ada", "bob") if not Receipt.objects.filter(key=f"welcome:{name}").exists()]
    for name in undone:
        dramatiq.get_broker().enqueue(actors.welcome.message(name))
    return len(undone)


@override_settings(LEASES_RESCUERS=[f"{HERE}.find_undone"])
def test_work_that_the_broker_lost_is_enqueued_again_and_done_once(jobs: Jobs) -> None:
    jobs.send(actors.welcome, "ada")
    jobs.send(actors.welcome, "bob")
    jobs.lose()
    assert jobs.state().waiting == 0
    call_command("leases", "rescue", "--once")
    call_command("leases", "rescue", "--once")  # a message too many
    jobs.start(1, 2)
    wait_until(lambda: Receipt.objects.count() == 2 and jobs.is_done(), 60)
    assert (actors.effects("ada"), actors.effects("bob")) == (1, 1)
    call_command("leases", "rescue", "--once")
    assert jobs.state().waiting == 0


def test_rescue_without_a_function_says_so() -> None:
    with pytest.raises(CommandError, match="LEASES_RESCUERS"):
        call_command("leases", "rescue", "--once")


def test_reopen_keeps_who_and_why_and_knows_what_is_not_there(capsys: Any) -> None:
    actors.welcome("ada")
    call_command("leases", "reopen", "welcome:ada", "--reason", "again", "--by", "ada")
    assert "opened welcome:ada" in capsys.readouterr().out
    assert Reopening.objects.get().by == "ada"
    with pytest.raises(CommandError) as caught:
        call_command("leases", "reopen", "welcome:ada", "--reason", "again")
    assert caught.value.returncode == 3


def test_prune_takes_expired_receipts_old_slots_and_replayed_letters_only(capsys: Any) -> None:
    now = timezone.now()
    actors.welcome("for ever")
    for key, expires in [("gone", now - timedelta(days=1)), ("kept", now + timedelta(days=1))]:
        Receipt.objects.create(key=key, actor="a", state="done", ran_at=now, expires_at=expires)
    for days in (300, 200, 100):
        Slot.objects.create(schedule="monthly", due_at=now - timedelta(days=days), state="fired", recorded_at=now)
    kill("open")
    DeadLetter.objects.filter(pk=kill("replayed").pk).update(replayed_at=now - timedelta(days=100))
    call_command("leases", "prune-jobs", "--older-than", "90d", "--dry-run", "--json")
    counts = {"receipts": 1, "slots": 2, "dead letters": 1}
    assert json.loads(capsys.readouterr().out) == counts
    call_command("leases", "prune-jobs", "--older-than", "90d", "--json", "--batch-size", "1")
    assert json.loads(capsys.readouterr().out) == counts
    assert sorted(Receipt.objects.values_list("key", flat=True)) == ["kept", "welcome:for ever"]
    assert Slot.objects.get().due_at == now - timedelta(days=100)  # the scheduler counts on from it
    assert DeadLetter.objects.get().key == "welcome:open"
