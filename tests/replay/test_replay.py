"""A short replay with real processes, and what its exit code says."""

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import psutil
from django.conf import settings
from django.db import connection

from project.replay import report
from project.replay.counting import Counts
from project.replay.stage import Stage
from project.replay.timeline import Cause
from tests.servers.processes import Processes
from tests.waiting import wait_until

GOOD = Counts(
    customers=10,
    without_invoice=0,
    invoices=10,
    twice={},
    more={},
    emails=10,
    second_emails=0,
    without_email=0,
    in_doubt=0,
    expired_under_holder=1,
    stale_refused=1,
    wasted_s=1.0,
    done_s=9.0,
)


def test_short_replay_hurts_the_naive_lock_and_nobody_else(processes: Processes, tmp_path: Path) -> None:
    options = ("--customers", 12, "--workers", 3, "--seed", 1, "--json", "--out", tmp_path / "replay")
    replay = processes.start("replay", *options)
    # 5: where work is slower than planned, doubled messages may hurt before locks expire; they do hurt, see below.
    assert replay.wait(300) in (0, 5), replay.output()
    result = json.loads(next(line for line in replay.output().splitlines() if line.startswith("{")))
    naive, ours = result["naive"], result["ours"]
    # The last line of the progress says what the table counts.
    said = re.findall(r"all invoiced and mailed after ([\d.]+) s$", replay.output(), re.MULTILINE)
    assert float(said[-1]) == ours["done_s"]
    assert naive["customers"] == ours["customers"] == ours["invoices"] == 12
    assert naive["invoices"] > 12
    assert naive["second_emails"] > 0
    assert ours["second_emails"] == ours["without_invoice"] == ours["without_email"] == 0
    assert (ours["twice"], ours["more"]) == (dict.fromkeys(ours["twice"], 0), dict.fromkeys(ours["more"], 0))
    picture = ElementTree.fromstring(Path(result["plot"]).read_text())  # noqa: S314 - our own file
    assert picture.tag.endswith("svg")


def test_interrupted_replay_leaves_nothing_behind(processes: Processes, tmp_path: Path) -> None:
    folder = tmp_path / "replay"
    replay = processes.start("replay", "--customers", 12, "--workers", 2, "--out", folder)
    replay.wait_for_line("naive lock: 2 workers", 120)
    wait_until((folder / "naive" / "events.jsonl").exists, 120)
    replay.interrupt()
    assert replay.wait(60) == 130, replay.output()
    assert "everything the replay started is stopped" in replay.output()
    # A worker whose start the interrupt fell into is stopped by the kernel, a moment later.
    wait_until(lambda: not [p for p in psutil.process_iter(["cmdline"]) if str(folder) in str(p.info["cmdline"])])
    made = Stage(settings.BASE_DIR, folder, settings.DATABASE_URL).database_url.rpartition("/")[2]
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_database WHERE datname = %s", [made])
        assert cursor.fetchone() == (0,)


def test_table_without_a_refused_holder_says_why() -> None:
    assert report.explained(GOOD) == []
    assert "none came back" in report.explained(replace(GOOD, stale_refused=0))[0]


def test_each_broken_promise_is_named() -> None:
    assert report.broken(GOOD) == []
    assert report.broken(replace(GOOD, invoices=11)) == ["1 second invoice"]
    assert report.broken(replace(GOOD, second_emails=2)) == ["2 second emails"]
    assert report.broken(replace(GOOD, without_invoice=1, invoices=9)) == ["1 customer without an outcome"]
    assert report.broken(replace(GOOD, without_email=1)) == ["1 customer without an email, 0 in doubt"]
    assert report.broken(replace(GOOD, without_email=1, in_doubt=1)) == []


def test_faults_that_only_doubled_messages_were_too_weak() -> None:
    assert report.too_weak(replace(GOOD, twice={Cause.DOUBLED: 5}))
    assert not report.too_weak(replace(GOOD, twice={Cause.EXPIRED: 1}))
    assert not report.too_weak(replace(GOOD, more={Cause.FOREIGN: 1}))
