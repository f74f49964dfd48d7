"""What `manage.py drain_outbox` says, and its exit codes."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

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


@pytest.mark.parametrize(
    "arguments",
    [["--once", "--watch"], ["--limit", "0"], ["--claim-ttl", "7200"], ["--rate", "0"], ["--metrics", "here"]],
)
def test_bad_usage_is_refused(arguments: list[str]) -> None:
    with pytest.raises(CommandError):
        call_command("drain_outbox", *arguments)


def test_channel_that_does_not_exist_is_bad_usage() -> None:
    with pytest.raises(CommandError, match="fax"):
        call_command("drain_outbox", "--channel", "fax")


def test_lost_database_ends_a_run_from_cron_with_its_own_code(
    processes: Processes, drainer_env: dict[str, str]
) -> None:
    env: dict[str, Any] = {**drainer_env, "DATABASE_URL": "postgresql://postgres@127.0.0.1:9/nowhere"}
    process = processes.start("drain_outbox", "--once", env=env)
    assert process.wait(60) == 75, process.output()
    assert process.output().count("the database does not answer") < 12  # it backs off, and does not spin


def test_health_file_that_cannot_be_written_leaves_nothing_in_doubt(
    mail_server: MailServer, publish: Publish, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mail_server.mode = "slow"
    publish()
    assert run("--until-empty", "--health-file", str(tmp_path / "gone" / "health"))[1] == 0
    assert "cannot write the health file" in caplog.text
    assert Message.objects.get().state == State.SENT
