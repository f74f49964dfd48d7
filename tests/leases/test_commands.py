"""`manage.py leases`, as people and programs use it."""

import json
import os
import re
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import timedelta
from io import StringIO
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from leases import fence, hold, keys
from leases.management.commands.leases import VERBS
from leases.models import Fence, Incident, Intervention, LeaseRecord
from leases.resources import key_of
from tests.leases.conftest import steal
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def leases(*arguments: object) -> tuple[int, str, str]:
    """Run the command; return its exit code and what it wrote on stdout and stderr."""
    out, err = StringIO(), StringIO()
    code = 0
    try:
        call_command("leases", *map(str, arguments), stdout=out, stderr=err)
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    except CommandError as error:
        code = error.returncode
        err.write(str(error))
    return code, out.getvalue(), err.getvalue()


def leases_json(*arguments: object) -> Any:
    code, out, err = leases(*arguments, "--json")
    assert code in (0, 1), err
    return json.loads(out)


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_an_example_and_the_exit_codes(verb: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as stopped:
        call_command("leases", verb, "--help")
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert f"manage.py leases {verb}" in text.split("examples:")[1]
    assert "exit codes:" in text


def test_ls_shows_who_holds_what_and_for_how_long_yet(redis: Any) -> None:
    assert leases("ls")[:2] == (0, "nothing is leased\n")
    with hold("customer:1") as lease:
        gone, taken = steal("customer:2"), steal("customer:3")
        redis.delete(key_of("customer:2"))
        redis.set(key_of("customer:3"), "a" * 32 + ":1", px=5000)
        code, out, _ = leases("ls")
        assert code == 0
        assert out.splitlines()[1].split()[:2] == ["customer:1", str(lease.token)]
        listed = {entry["token"]: entry for entry in leases_json("ls")}
    assert listed[lease.token]["state"] == "held"
    assert 59 < listed[lease.token]["left_s"] <= 60
    assert (listed[gone]["state"], listed[gone]["left_s"]) == ("expired", None)
    assert listed[taken]["state"] == "taken"


@pytest.mark.parametrize("verb", ["ls", "show"])
def test_name_that_would_move_the_cursor_or_begin_a_line_is_shown_as_text(verb: str, redis: Any) -> None:
    name = "customer:\x1b[2J1\nnothing is leased"
    steal(name)
    redis.set(key_of(name), b"\x1b[2J", px=5000)
    out = leases(verb, *([name] if verb == "show" else []))[1]
    assert "customer:\\x1b[2J1\\nnothing is leased" in out
    assert "\x1b" not in out


def test_ls_can_be_narrowed() -> None:
    for number in range(3):
        steal(f"customer:{number}")
    steal("report:1")
    assert {entry["resource"] for entry in leases_json("ls", "--kind", "report")} == {"report:1"}
    code, out, err = leases("ls", "--limit", 2)
    assert (code, len(out.splitlines())) == (0, 3)
    assert "more than 2" in err


def test_ls_asks_redis_once_and_the_database_again_only_for_what_has_no_key(
    redis: Any, django_assert_num_queries: Any, monkeypatch: Any
) -> None:
    for number in range(20):
        steal(f"customer:{number}")
    trips: list[list[str]] = []
    read = keys.read

    def counted(resources: Iterable[str]) -> dict[str, keys.Key]:
        trips.append(list(resources))
        return read(trips[-1])

    monkeypatch.setattr(keys, "read", counted)
    with django_assert_num_queries(1):
        leases("ls")
    assert len(trips) == 1
    redis.delete(*(key_of(f"customer:{number}") for number in range(20)))
    with django_assert_num_queries(2):
        leases("ls")


@pytest.mark.parametrize("prunes", [False, True], ids=["released", "released and pruned"])
def test_lease_released_between_the_two_looks_is_not_called_expired(redis: Any, monkeypatch: Any, prunes: bool) -> None:
    held = ExitStack()
    held.enter_context(hold("customer:1"))
    steal("customer:2")
    redis.delete(key_of("customer:2"))
    read = keys.read

    def after_the_release(resources: Iterable[str]) -> dict[str, keys.Key]:
        held.close()
        if prunes:
            LeaseRecord.objects.exclude(ended_at=None).delete()
        return read(resources)

    monkeypatch.setattr(keys, "read", after_the_release)
    states = {entry["resource"]: entry["state"] for entry in leases_json("ls")}
    assert states == {"customer:1": "pruned" if prunes else "released", "customer:2": "expired"}


def test_ls_without_redis_still_lists_and_says_so(unreachable_redis: None) -> None:
    from leases import fence
    from leases.process import ProcessIdentity

    fence.register(
        fence.Registration("customer:1", 7, "a" * 32, 1000, ProcessIdentity("elsewhere", 1, ""), ""),
        lock_timeout_ms=1000,
        using="default",
    )
    code, out, err = leases("ls")
    assert code == 4
    assert "customer:1" in out
    assert "Redis does not answer" in err


def test_show_tells_the_whole_history() -> None:
    with hold("customer:1") as first:
        pass
    token = steal("customer:1")
    leases("break", "customer:1", "--reason", "it hangs", "--by", "ada")
    facts = leases_json("show", "customer:1")
    assert facts["fence"]["token"] == token + 1
    assert [record["token"] for record in facts["records"]] == [token, first.token]
    assert [record["end"] for record in facts["records"]] == ["broken", "released"]
    assert facts["interventions"][0]["reason"] == "it hangs"
    assert facts["key"] is None
    assert re.search(r"nobody holds it\nfence +token \d+ since \S+Z\n", leases("show", "customer:1")[1])


def test_show_of_what_was_never_leased() -> None:
    code, _, err = leases("show", "customer:1")
    assert code == 3
    assert "never leased" in err


def test_show_tells_a_foreign_value_from_a_lease(redis: Any) -> None:
    redis.set(key_of("customer:1"), "something")
    assert "THIS IS NOT A LEASE" in leases("show", "customer:1")[1]
    assert leases_json("show", "customer:1")["key"]["is_lease"] is False


def test_break_by_command_is_kept_with_the_person(redis: Any) -> None:
    token = steal("customer:1")
    assert leases("break", "customer:1", "--reason", "it hangs", "--dry-run")[0] == 0
    assert Fence.objects.get().token == token
    code, out, _ = leases("break", "customer:1", "--reason", "it hangs")
    assert (code, "can write no more" in out) == (0, True)
    assert Fence.objects.get().token == token + 1
    assert redis.get(key_of("customer:1")) is None
    assert "@" in Intervention.objects.get().by


def test_break_of_many_goes_on_after_one_that_is_not_leased() -> None:
    token = steal("customer:2")
    code, out, err = leases("break", "customer:1", "customer:2", "--reason", "it hangs")
    assert code == 3
    assert "customer:1 is not leased" in err
    assert f"broke customer:2, token {token}" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["break", "customer:1"],
        ["break", "customer:1", "--reason", " "],
        ["break", "", "--reason", "it hangs"],
        ["break", "a", "b", "--token", "1", "--reason", "it hangs"],
        ["prune", "--older-than", "3"],
        ["prune", "--older-than", "-3d"],
        ["prune", "--older-than", "3d", "--batch-size", "0"],
        ["prune", "--older-than", "3d", "--fences"],
        ["headroom", "--window", "soon"],
        ["rescue", "--interval", "-1"],
        ["nonsense"],
    ],
)
def test_wrong_usage_is_refused(arguments: list[str], processes: Any) -> None:
    process = processes.start("leases", *arguments)
    assert process.wait() == 2
    assert "error" in process.output().lower()


def test_watch_once_finds_what_expired_unseen(redis: Any) -> None:
    assert leases("watch", "--once")[:2] == (0, "no lease expired unseen\n")
    steal("customer:1", ttl_ms=400)
    redis.delete(key_of("customer:1"))
    assert leases("watch", "--once")[:2] == (1, "1 lease expired under a running holder\n")
    assert Incident.objects.get().detector == Incident.Detector.WATCHER


@pytest.mark.parametrize("stop", ["terminate", "interrupt"])
def test_watch_stops_on_a_signal_and_gives_its_lease_back(stop: str, processes: Any, redis: Any) -> None:
    watcher = processes.start("leases", "watch")
    watcher.wait_for_event("watcher.elected")
    getattr(watcher, stop)()
    assert watcher.wait() == 0
    assert redis.get(key_of(fence.place("watcher", using="default"))) is None
    assert LeaseRecord.objects.get().end == LeaseRecord.End.RELEASED


def insert_records(kind: str, holds_ms: list[int], *, ttl_ms: int = 1000) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO leases_leaserecord (resource, token, holder, ttl_ms, host, pid, process_started, thread, "
            "acquired_at, ended_at, \"end\") SELECT %s || ':' || n, n, '', %s, '', 0, '', '', "
            "now() - interval '1 hour', now() - interval '1 hour' + make_interval(secs => ms / 1000.0), 'released' "
            "FROM unnest(%s::int[]) WITH ORDINALITY AS h(ms, n)",
            [kind, ttl_ms, holds_ms],
        )


def test_headroom_warns_when_the_99th_percentile_passes_half_the_ttl() -> None:
    insert_records("quick", [100] * 100)
    code, out, _ = leases("headroom")
    assert code == 0
    assert "quick" in out
    insert_records("slow", [100] * 98 + [900] * 2)
    code, out, err = leases("headroom")
    assert code == 1
    assert "at least 2 s" in err
    slow, quick = leases_json("headroom")
    assert (slow["kind"], slow["thin"], slow["p99_s"], slow["p50_s"]) == ("slow", True, 0.9, 0.1)
    assert slow["histogram"] == {"0.125": 98, "0.25": 0, "0.5": 0, "1.0": 2, "2.0": 0, "4.0": 0, "8.0": 0, "longer": 0}
    assert quick["thin"] is False


def test_headroom_leaves_out_what_says_nothing_of_the_work() -> None:
    insert_records("leases", [600_000])
    insert_records("crashed", [600_000])
    LeaseRecord.objects.filter(resource__startswith="crashed").update(end="expired")
    assert leases_json("headroom") == []


def test_headroom_counts_a_job_that_has_not_ended(redis: Any) -> None:
    steal("stuck:1", ttl_ms=1000)
    LeaseRecord.objects.update(acquired_at="2026-01-01T00:00Z")
    assert leases_json("headroom") == []
    assert leases_json("headroom", "--window", "90000d")[0]["thin"] is True


def test_headroom_of_names_without_a_colon_is_one_kind() -> None:
    insert_records("x", [10])
    LeaseRecord.objects.update(resource="nightly")
    assert [kind["kind"] for kind in leases_json("headroom")] == [""]


def test_prune_deletes_only_what_ended_long_ago_in_batches() -> None:
    insert_records("old", [100] * 10)
    LeaseRecord.objects.update(acquired_at="2025-01-01T00:00Z", ended_at="2025-01-01T00:01Z")
    insert_records("young", [100] * 3)
    unended = steal("customer:1")
    LeaseRecord.objects.filter(token=unended).update(acquired_at="2025-01-01T00:00Z")
    assert leases("prune", "--older-than", "30d", "--dry-run")[1] == "would prune 10 records\n"
    assert leases("prune", "--older-than", "30d", "--batch-size", 3)[1] == "pruned 10 records\n"
    assert LeaseRecord.objects.count() == 4
    assert Fence.objects.count() == 1


def test_prune_of_incidents_only_when_asked() -> None:
    steal("customer:1", ttl_ms=100)
    wait_until(lambda: leases("watch", "--once")[0] == 1)
    Incident.objects.update(seen_at="2025-01-01T00:00Z")
    leases("prune", "--older-than", "30d")
    assert Incident.objects.count() == 1
    assert leases_json("prune", "--older-than", "30d", "--incidents") == {"records": 0, "incidents": 1}


def test_prune_of_fences_needs_a_reason_and_says_what_it_gives_up() -> None:
    with hold("customer:1"):
        pass
    held = steal("customer:2")
    Fence.objects.update(changed_at="2025-01-01T00:00Z")
    code, _, err = leases("prune", "--older-than", "30d", "--fences")
    assert code == 2
    assert "tokens only went up" in err
    assert leases_json("prune", "--older-than", "30d", "--fences", "--reason", "closed")["fences"] == 1
    assert Fence.objects.get().token == held
    assert Intervention.objects.get().action == Intervention.Action.PRUNE_FENCES


def durations() -> list[tuple[str, timedelta]]:
    return [("90s", timedelta(seconds=90)), ("1.5h", timedelta(minutes=90)), ("250ms", timedelta(milliseconds=250))]


@pytest.mark.parametrize(("text", "expected"), durations())
def test_durations_are_read_with_their_unit(text: str, expected: timedelta) -> None:
    from leases.cli.verb import duration

    read: Callable[[str], timedelta] = duration
    assert read(text) == expected


@pytest.mark.parametrize(
    "arguments", [["leases", "ls"], ["leases", "show", "customer:1"], ["workload", "--duplicates"]]
)
def test_tables_that_were_never_made_are_said_in_one_sentence(processes: Any, arguments: list[str]) -> None:
    url = urlsplit(os.environ["DATABASE_URL"])._replace(path="/postgres").geturl()
    process = processes.start(*arguments, env={"DATABASE_URL": url})
    assert process.wait() > 0
    assert "run manage.py migrate first" in process.output()
    assert "Traceback" not in process.output()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["ls", "--database", "nowhere"], "invalid choice: 'nowhere'"),
        (["headroom", "--window", "99999999d"], "a thousand years at most"),
        (["break", "", "--reason", "x"], "'' cannot name a resource: it is empty"),
        (["show", "a\x00b"], "it contains the NUL character"),
    ],
)
def test_wrong_argument_is_named_in_one_sentence(arguments: list[str], sentence: str) -> None:
    code, _, error = leases(*arguments)
    assert code > 0
    assert sentence in error


def test_break_says_that_nothing_was_broken_when_redis_is_away(unreachable_redis: None) -> None:
    code, _, error = leases("break", "customer:1", "--reason", "frozen")
    assert code == 4
    assert "customer:1 could not be broken: Redis does not answer" in error


def test_watch_once_says_in_one_sentence_that_tables_were_never_made() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE leases_leaserecord RENAME TO gone")
        try:
            code, _, error = leases("watch", "--once")
        finally:
            cursor.execute("ALTER TABLE gone RENAME TO leases_leaserecord")
    assert code == 4
    assert error == "The database has no tables of leases: run manage.py migrate first."
