"""Who runs the commands: a role of the database that owns nothing, a user of the machine without a name."""

import re
from collections.abc import Callable, Iterator

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from outbox.models import Decision, Message
from tests.docs.reading import ROOT

from .smtp_server import MailServer

pytestmark = pytest.mark.django_db(transaction=True)

GRANTS = re.findall(r"^      (GRANT .*?;)", (ROOT / "docs/ready-for-production.md").read_text(), re.MULTILINE)


@pytest.fixture
def role() -> Iterator[str]:
    """A role that owns nothing, and is made to be this connection's by SET ROLE."""
    name = f"{connection.settings_dict['NAME']}_app"
    with connection.cursor() as cursor:
        cursor.execute(f'CREATE ROLE "{name}"')
    yield f'"{name}"'
    with connection.cursor() as cursor:
        cursor.execute("RESET ROLE")
        cursor.execute(f'DROP OWNED BY "{name}"')
        cursor.execute(f'DROP ROLE "{name}"')


def become(role: str, grants: list[str]) -> None:
    with connection.cursor() as cursor:
        for grant in grants:
            cursor.execute(grant.replace("invoice_once", role))
        cursor.execute(f"SET ROLE {role}")


def test_documented_role_can_drain_and_put_right_after_a_failover(
    mail_server: MailServer, publish: Callable[..., Message], role: str
) -> None:
    publish()
    become(role, GRANTS)
    call_command("outbox", "after_failover", "--nothing-lost")
    call_command("drain_outbox", "--until-empty")
    call_command("outbox", "after_failover")
    call_command("outbox", "prune", "--older-than", "1")


@pytest.mark.parametrize("words", [["outbox", "after_failover"], ["outbox", "status"], ["drain_outbox", "--once"]])
def test_role_that_lacks_a_grant_is_told_which_in_one_sentence(words: list[str], role: str) -> None:
    become(role, [])
    with pytest.raises(CommandError, match=r"permission denied for (sequence|table) outbox_\w+\): run it as"):
        call_command(*words)


def test_user_without_a_name_is_named_by_number(
    mail_server: MailServer, publish: Callable[..., Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 54321)
    publish()
    call_command("outbox", "cancel", "--reason", "r", "k")
    assert Decision.objects.get().by.startswith("uid 54321@")
