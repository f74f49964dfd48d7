"""What `manage.py drain_outbox` says, and its exit codes."""

import contextlib
import io
import json
import os
import pty
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from outbox.models import Message, State
from tests.servers.processes import Processes

from .smtp_server import MailServer

pytestmark = pytest.mark.django_db(transaction=True)

Publish = Callable[..., Message]


def run(*arguments: str) -> tuple[str, int]:
    output = io.StringIO()
    try:
        call_command("drain_outbox", *arguments, stdout=output, stderr=output)
    except SystemExit as error:
        return output.getvalue(), int(error.code or 0)
    return output.getvalue(), 0


@pytest.fixture
def away() -> Iterator[None]:
    """A database that nobody can reach."""
    port = connection.settings_dict["PORT"]
    connection.close()
    connection.settings_dict["PORT"] = "9"
    yield
    connection.settings_dict["PORT"] = port


def test_dry_run_says_what_is_due_and_changes_nothing(mail_server: MailServer, publish: Publish) -> None:
    publish()
    assert run("--dry-run") == ("due now: 1 email\n", 0)
    assert json.loads(run("--dry-run", "--json")[0]) == {"email": 1}
    assert Message.objects.get().state == State.PENDING


def test_nothing_left_is_zero_and_somebody_needed_is_three(mail_server: MailServer, publish: Publish) -> None:
    publish()
    output, code = run("--until-empty", "--json")
    assert code == 0
    assert json.loads(output)["sent"] == 1
    publish("bad", to="permfail@example.org")
    output, code = run("--once")
    assert code == 3
    assert "waiting for a person: 1 dead" in output


NUMBERS = ["0", "-1", "nan", "inf", "-inf", "1e400", "99999999999999999999999", "many", "", "²", "1_0x"]
NUMERIC = [
    ["drain_outbox", "--limit"],
    ["drain_outbox", "--batch-size"],
    ["drain_outbox", "--micro-batch"],
    ["drain_outbox", "--concurrency"],
    ["drain_outbox", "--rate"],
    ["drain_outbox", "--claim-ttl"],
    ["drain_outbox", "--poll-interval"],
    ["drain_outbox", "--max-runtime"],
    ["outbox", "prune", "--older-than", "1", "--batch-size"],
    ["outbox", "prune", "--older-than"],
]


@pytest.mark.parametrize("option", NUMERIC, ids=" ".join)
@pytest.mark.parametrize("number", NUMBERS)
def test_number_that_cannot_be_meant_is_refused_with_a_sentence(option: list[str], number: str) -> None:
    with pytest.raises(CommandError, match=f"argument {option[-1]}: {re.escape(repr(number))} is not a .* from .* to"):
        call_command(*option[:-1], f"{option[-1]}={number}")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["drain_outbox", "--once", "--watch"], "not allowed with"),
        (["drain_outbox", "--claim-ttl", "7200"], "longer than OUTBOX_MAX_CLAIM_TTL"),
        (["drain_outbox", "--claim-ttl", "0.000001"], "from 1 to"),
        (["drain_outbox", "--metrics", "here"], "is not HOST:PORT"),
        (["drain_outbox", "--metrics", "127.0.0.1:99999"], "is not HOST:PORT"),
        (["drain_outbox", "--metrics", "127.0.0.1:²"], "is not HOST:PORT"),
        (["drain_outbox", "--health-file", ""], "is not the name of a file"),
        (["drain_outbox", "--health-file", "/"], "is not the name of a file"),
        (["drain_outbox", "--health-file", "."], "is not the name of a file"),
        (["drain_outbox", "--database", "nowhere"], "there is no database 'nowhere'"),
        (["outbox", "--database", "nowhere", "status"], "there is no database 'nowhere'"),
        (["outbox", "show", "#²"], "there is no message"),
        (["outbox", "show", "#" + "9" * 5000], "there is no message"),
        (["outbox", "show", "\udcff"], r"there is no message '\udcff'"),
        (["outbox", "requeue", "--all-dead", "--channel", "emial", "--reason", "r"], "there is no channel 'emial'"),
        (["outbox", "requeue", "--channel", "email", "--reason", "r", "k"], "--channel goes with --all-dead"),
        (["outbox", "show", "#99999999999999999999999"], "there is no message"),
    ],
)
def test_bad_usage_is_refused_with_a_sentence(arguments: list[str], sentence: str) -> None:
    with pytest.raises(CommandError, match=re.escape(sentence)):
        call_command(*arguments)


@pytest.mark.parametrize(
    "words",
    [
        ["drain_outbox", "--dry-run"],
        ["outbox", "status"],
        ["outbox", "show", "k"],
        ["outbox", "resolve", "--arrived", "--reason", "r", "k"],
        ["outbox", "requeue", "--reason", "r", "--all-dead"],
        ["outbox", "cancel", "--reason", "r", "#1"],
        ["outbox", "prune", "--older-than", "1"],
        ["outbox", "prune", "--older-than", "1", "--dry-run"],
        ["outbox", "after_failover"],
    ],
    ids=" ".join,
)
def test_database_that_is_away_is_said_in_one_sentence(words: list[str], away: None) -> None:
    with pytest.raises(CommandError, match="the database does not answer as it should") as caught:
        call_command(*words)
    assert caught.value.returncode == 75


def test_database_that_was_never_migrated_is_said_in_one_sentence(caplog: pytest.LogCaptureFixture) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE outbox_message RENAME TO elsewhere")
    try:
        for words in (["outbox", "status"], ["drain_outbox", "--once"], ["drain_outbox", "--dry-run"]):
            with pytest.raises(CommandError, match=r"run manage\.py migrate first"):
                call_command(*words)
        assert not [record for record in caplog.records if record.exc_info]
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO outbox_message")


def test_channel_that_does_not_exist_is_bad_usage() -> None:
    with pytest.raises(CommandError, match="fax"):
        call_command("drain_outbox", "--channel", "fax")


def test_lost_database_ends_a_run_from_cron_with_its_own_code(
    processes: Processes, drainer_env: dict[str, str]
) -> None:
    env: dict[str, Any] = {**drainer_env, "DATABASE_URL": "postgresql://postgres@127.0.0.1:9/nowhere"}
    process = processes.start("drain_outbox", "--once", env=env)
    assert process.wait(60) == 75, process.output()
    assert "Traceback" not in process.output()
    assert "the database does not answer; what could not be marked" in process.output().splitlines()[-1]
    assert process.output().count("the database does not answer") < 12  # it backs off, and does not spin


def test_health_file_that_is_a_link_stays_one(mail_server: MailServer, publish: Publish, tmp_path: Path) -> None:
    link, target = tmp_path / "link", tmp_path / "target"
    target.write_text("old")
    link.symlink_to(target)
    publish()
    run("--until-empty", "--health-file", str(link))
    assert link.is_symlink()
    assert json.loads(target.read_text())["pid"] == os.getpid()


def test_terminal_that_was_closed_leaves_nothing_in_doubt(
    mail_server: MailServer, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal, screen = pty.openpty()
    lines = os.fdopen(screen, "w")
    os.close(terminal)
    monkeypatch.setattr(sys, "stderr", lines)
    monkeypatch.setattr(lines, "isatty", lambda: True)  # as it was when the drainer was started
    publish()
    assert run("--until-empty")[1] == 0
    assert Message.objects.get().state == State.SENT
    with contextlib.suppress(OSError):
        lines.close()


def test_health_file_that_cannot_be_written_leaves_nothing_in_doubt(
    mail_server: MailServer, publish: Publish, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mail_server.mode = "slow"
    publish()
    assert run("--until-empty", "--health-file", str(tmp_path / "gone" / "health"))[1] == 0
    assert "cannot write the health file" in caplog.text
    assert Message.objects.get().state == State.SENT
