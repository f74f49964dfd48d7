"""`manage.py schedule`: one scheduler among many fires each slot once, and missed slots are caught up by policy."""

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from leases import hold
from leases.jobs.errors import InvalidSchedule
from leases.jobs.scheduler import Scheduler
from leases.jobs.schedules import Schedule, parsed
from leases.models import Slot
from tests.jobs import actors
from tests.jobs.models import Effect
from tests.leases import other_database
from tests.once.conftest import Jobs
from tests.servers.processes import Processes
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def scheduler(**entry: Any) -> Scheduler:
    return Scheduler([parsed("test", {"actor": "welcome", "args": ["{slot:%H:%M:%S}"], **entry})])


def last_seen(ago: timedelta) -> None:
    """Have the schedule been fired for the last time so long ago."""
    Slot.objects.all().delete()
    at = datetime.now(UTC) - ago
    Slot.objects.create(schedule="test", due_at=at, state=Slot.State.FIRED, recorded_at=at)


def states() -> list[str]:
    return list(Slot.objects.order_by("due_at").values_list("state", flat=True))[1:]


def test_schedule_seen_for_the_first_time_has_missed_nothing() -> None:
    assert scheduler(every=timedelta(seconds=1)).look() == 0
    assert Slot.objects.get().state == "first_seen"


def test_missed_slots_are_fired_all_or_the_latest_or_not_at_all() -> None:
    # outbox D26
    minute = timedelta(minutes=1)
    for policy, fired, left_out in [("all", 10, 0), ("latest", 1, 9), ("skip", 1, 9)]:
        last_seen(10 * minute)
        assert scheduler(every=minute, missed=policy).look() == fired
        assert (states().count("fired"), states().count("missed")) == (fired, left_out)
        assert scheduler(every=minute, missed=policy).look() == 0
    last_seen(timedelta(hours=30))
    # Due at midnight, and it is later than a minute after it unless the test runs right then.
    daily = scheduler(cron="0 0 * * *", missed="skip")
    now = datetime.now(UTC)
    expected = 1 if now - now.replace(hour=0, minute=0, second=0, microsecond=0) < minute else 0
    assert daily.look() == expected


def test_slot_whose_leader_died_before_enqueueing_is_enqueued_by_the_next() -> None:
    at = datetime.now(UTC) - timedelta(seconds=5)
    Slot.objects.create(schedule="test", due_at=at, state=Slot.State.DUE, recorded_at=at)
    assert scheduler(every=timedelta(days=300)).look() == 1
    assert Slot.objects.get(due_at=at).state == "fired"


def test_slot_that_cannot_be_enqueued_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """It ended the scheduler, and with it every schedule."""
    at = datetime.now(UTC) - timedelta(seconds=5)
    broken = Schedule(name="broken", actor="welcome", every=timedelta(days=300), args=(object(),))
    for name in ["broken", "test"]:
        Slot.objects.create(schedule=name, due_at=at, state=Slot.State.DUE, recorded_at=at)
    both = scheduler(every=timedelta(days=300))
    both.schedules["broken"] = broken
    assert both.look() == 1
    assert dict(Slot.objects.values_list("schedule", "state")) == {"broken": "due", "test": "fired"}
    assert "A slot of broken could not be fired" in caplog.text


def test_slot_that_lies_ahead_does_not_silence_its_schedule() -> None:
    """A database whose clock was ahead left it there."""
    last_seen(timedelta(minutes=2))
    ahead = datetime.now(UTC) + timedelta(days=400)
    Slot.objects.create(schedule="test", due_at=ahead, state=Slot.State.FIRED, recorded_at=ahead)
    assert scheduler(every=timedelta(minutes=1)).look() == 1


def test_texts_inside_of_arguments_are_filled_too() -> None:
    schedule = parsed("test", {"actor": "welcome", "cron": "0 3 1 * *", "args": [{"months": ["{slot:%Y-%m}"]}]})
    assert schedule.message(datetime(2026, 5, 1, 3, tzinfo=UTC)).args == ({"months": ["2026-05"]},)


def test_frozen_leader_that_wakes_fires_nothing_its_successor_fired() -> None:
    last_seen(timedelta(seconds=90))
    old, new = scheduler(every=timedelta(minutes=1)), scheduler(every=timedelta(minutes=1))
    now = old._now()  # it looked at the clock, then froze
    assert new.look() == 1
    old._take_up(old.schedules["test"], now)
    assert old._fire(None) == 0
    assert states() == ["fired"] or states() == ["missed", "fired"]


def test_many_schedulers_fire_each_slot_once(processes: Processes, jobs: Jobs) -> None:
    # outbox D26
    env = {"BROKER_URL": jobs.url, "BROKER_CONSUMER_TIMEOUT_SECONDS": "4200"}
    started = [processes.start("schedule", env=env) for _ in range(3)]
    leaders = wait_until(lambda: [one for one in started if one.events("scheduler.elected")], 40)
    wait_until(lambda: Slot.objects.filter(state="fired").count() >= 3, 40)
    leaders[0].kill()  # its lease runs out, then another leads
    wait_until(lambda: any(one.events("scheduler.elected") for one in started if one not in leaders), 60)
    others = [one for one in started if one not in leaders]
    wait_until(lambda: any(one.events("slot.fired") for one in others), 30)
    for one in others:
        one.terminate()
        assert one.wait(20) == 0
    enqueued = [event["slot"] for one in started for event in one.events("slot.fired")]
    assert len(enqueued) == len(set(enqueued)) == Slot.objects.filter(state="fired").count()
    slots = list(Slot.objects.exclude(state="first_seen").order_by("due_at").values_list("due_at", flat=True))
    assert all(later - slot == timedelta(seconds=1) for slot, later in pairwise(slots))  # no hole
    jobs.start(1, 2)
    wait_until(lambda: Effect.objects.filter(name__startswith="tick").count() == len(enqueued), 60)


def test_leadership_is_given_back_at_once_when_the_leader_is_told_to_stop(processes: Processes) -> None:
    first = processes.start("schedule")
    first.wait_for_event("scheduler.elected", 40)
    second = processes.start("schedule")
    first.terminate()
    assert first.wait(20) == 0
    second.wait_for_event("scheduler.elected", 10)  # less than the lease's 15 s


def test_leader_of_another_project_that_shares_the_redis_does_not_stand_in_the_way(django_db_blocker: Any) -> None:
    with other_database.second_tables(django_db_blocker):
        other = Scheduler([], using=other_database.ALIAS)
        with hold(Scheduler([]).resource), hold(other.resource, using=other_database.ALIAS):
            pass


def test_once_fires_what_is_due_and_stands_back_while_another_leads(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("schedule", "--once")
    assert "enqueued: 0" in capsys.readouterr().out
    from tests.once.test_once import in_thread

    with hold(Scheduler([]).resource):
        thread, got = in_thread(lambda: call_command("schedule", "--once"))
        thread.join(20)
    assert isinstance(got[0], CommandError)
    assert "Another process schedules" in str(got[0])


def test_list_says_when_everything_is_due_next(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("schedule", "--list", "--json")
    row = json.loads(capsys.readouterr().out)[0]
    assert (row["schedule"], row["actor"], row["missed"]) == ("tick", "tick", "all")
    assert datetime.fromisoformat(row["next"]) > datetime.now(UTC)


def test_schedule_of_an_actor_that_is_not_there_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    entries = {"tick": {"actor": "tick", "cron": "0 3 * * *"}, "nightly": {"actor": "tack", "cron": "0 3 * * *"}}
    with override_settings(LEASES_SCHEDULE=entries):
        call_command("schedule", "--list", "--json")
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)) == 2
    assert captured.err.splitlines() == [
        "nightly fires tack, which no broker knows: define the actor in a module `actors` of an app, or correct "
        "its name."
    ]


def test_cron_follows_the_clocks_of_its_time_zone() -> None:
    schedule = parsed("test", {"actor": "welcome", "cron": "30 2 * * *", "timezone": "Europe/Berlin"})
    berlin = ZoneInfo("Europe/Berlin")
    spring = list(schedule.between(datetime(2026, 3, 28, 12, tzinfo=berlin), datetime(2026, 3, 30, 12, tzinfo=berlin)))
    autumn = list(
        schedule.between(datetime(2026, 10, 24, 12, tzinfo=berlin), datetime(2026, 10, 26, 12, tzinfo=berlin))
    )
    assert (len(spring), len(autumn)) == (2, 2)  # once a day, also when 02:30 does not exist or comes twice


@pytest.mark.parametrize(
    "entry",
    [
        {"cron": "* * * * *"},
        {"actor": "a"},
        {"actor": "a", "cron": "* * *"},
        {"actor": "a", "cron": "0 0 31 2 *"},
        {"actor": "a", "cron": "* * * * *", "every": timedelta(minutes=1)},
        {"actor": "a", "every": 60},
        {"actor": "a", "every": timedelta(minutes=1), "timezone": "Berlin"},
        {"actor": "a", "every": timedelta(minutes=1), "missed": "hope"},
        {"actor": "a", "every": timedelta(minutes=1), "args": ["{month}"]},
        {"actor": "a", "every": timedelta(minutes=1), "args": ["{slot.nope}"]},
        {"actor": "a", "every": timedelta(minutes=1), "args": [[{"month": "{month}"}]]},
        {"actor": "a", "every": timedelta(minutes=1), "args": "abc"},
        {"actor": "a", "every": timedelta(minutes=1), "args": [timedelta(minutes=1)]},
        {"actor": "a", "every": timedelta(minutes=1), "kwargs": ["b"]},
        {"actor": "a", "every": timedelta(minutes=1), "kwargs": {"b": object()}},
        {"actor": "a", "every": timedelta(minutes=1), "crontab": "x"},
        {"actor": "a", "every": None},
        {"actor": "a", "cron": None},
        {"actor": "a", "cron": 5},
        None,
    ],
)
def test_entry_that_cannot_be_understood_is_named(entry: dict[str, Any]) -> None:
    with pytest.raises(InvalidSchedule, match="'broken'"):
        parsed("broken", entry)


def test_actors_of_the_tests_are_known_to_the_broker() -> None:
    assert actors.tick.actor_name == "tick"
