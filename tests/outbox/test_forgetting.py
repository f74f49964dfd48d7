"""A database that lost a part of its history: nothing is sent until what may have been sent was put in doubt."""

import io
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.utils import timezone

import outbox
from outbox.claims import Statements
from outbox.decisions import Action, decide
from outbox.drain import Report
from outbox.errors import DecisionRefused
from outbox.models import DatabaseIdentity, Message, State

from .smtp_server import MailServer

pytestmark = pytest.mark.django_db(transaction=True)

Publish = Callable[..., Message]
Drain = Callable[..., Report]


def restore_another() -> None:
    """As a promotion leaves it: the stored timeline is an earlier one. The next connection notices."""
    DatabaseIdentity.objects.update(timeline=0)
    connection.close()


def after_failover(*options: str) -> str:
    output = io.StringIO()
    call_command("outbox", "after_failover", *options, stdout=output)
    return output.getvalue()


def test_first_database_is_accepted_and_the_same_one_goes_on(
    mail_server: MailServer, publish: Publish, drain: Drain
) -> None:
    publish()
    assert drain().database_forgot == ""
    connection.close()
    publish("k2")
    assert drain().tally["sent"] == 1


def test_nothing_is_sent_after_a_promotion_until_the_command_has_run(
    mail_server: MailServer, publish: Publish, drain: Drain
) -> None:
    drain()
    publish()
    restore_another()
    report = drain()
    assert "outbox after_failover" in report.database_forgot
    assert not mail_server.received
    assert Message.objects.get().state == State.PENDING
    assert after_failover("--dry-run") == "would put 1 message in doubt\n"
    assert drain().database_forgot
    assert after_failover() == "put 1 message in doubt; drainers may go on\n"
    assert drain().database_forgot == ""
    message = Message.objects.get()
    assert message.state == State.IN_DOUBT
    assert not mail_server.received
    with pytest.raises(DecisionRefused, match="may still be handing it over"):
        decide(Action.SEND_AGAIN, message.id, reason="r", by="eve")
    decide(Action.ARRIVED, message.id, reason="in the server's log", by="eve")


def test_nothing_is_sent_after_a_dump_was_restored_into_the_same_database(
    mail_server: MailServer, publish: Publish, drain: Drain
) -> None:
    drain()
    publish()
    [identity] = DatabaseIdentity.objects.all()
    # What pg_restore --clean does to a table.
    with connection.schema_editor() as editor:
        editor.delete_model(DatabaseIdentity)
        editor.create_model(DatabaseIdentity)
    identity.save(force_insert=True)
    connection.close()
    assert drain().database_forgot
    assert not mail_server.received
    after_failover()
    assert drain().database_forgot == ""


def test_what_was_never_due_is_left_and_what_is_sent_stays_sent(
    mail_server: MailServer, publish: Publish, drain: Drain
) -> None:
    publish("sent")
    drain()
    with transaction.atomic():
        mail = {"to": "a@example.org", "subject": "s", "text": "t"}
        outbox.publish("email", mail, dedupe_key="later", not_before=timezone.now() + timedelta(hours=1))
    publish("due")
    # It may have been requeued and sent in the history that is lost; requeued once more, it would arrive twice.
    Message.objects.filter(id=publish("dead").id).update(state=State.DEAD, last_error="550 no such user")
    restore_another()
    after_failover()
    assert "550 no such user" in Message.objects.get(dedupe_key="dead").last_error
    assert dict(Message.objects.values_list("dedupe_key", "state")) == {
        "sent": "sent",
        "later": "pending",
        "due": "in_doubt",
        "dead": "in_doubt",
    }


def test_claim_numbers_of_the_lost_history_are_never_given_again(publish: Publish, drain: Drain) -> None:
    drain()
    publish()
    before = Statements("default").claim("email", limit=1, ttl=timedelta(minutes=1), drainer="old")
    assert before
    after_failover()
    publish("k2")
    after = Statements("default").claim("email", limit=1, ttl=timedelta(minutes=1), drainer="new")
    assert after
    assert after.number > before.number + 1_000_000


def test_nothing_lost_only_accepts_the_new_identity(mail_server: MailServer, publish: Publish, drain: Drain) -> None:
    drain()
    publish()
    restore_another()
    assert after_failover("--nothing-lost").startswith("put 0 messages")
    assert drain().tally["sent"] == 1


def test_drainer_ends_with_its_own_exit_code(publish: Publish, drain: Drain, mail_server: MailServer) -> None:
    drain()
    restore_another()
    with pytest.raises(SystemExit) as caught:
        call_command("drain_outbox", "--watch", stdout=io.StringIO())
    code: Any = caught.value.code
    assert code == 4


def test_drainer_that_holds_a_claim_during_the_command_gives_nothing_back(publish: Publish) -> None:
    publish()
    statements = Statements("default")
    claim = statements.claim("email", limit=1, ttl=timedelta(seconds=60), drainer="of before")
    assert claim
    after_failover()
    assert statements.give_back(claim.number, [claim.held[0].id]) == 0
    message = Message.objects.get()
    assert (message.state, message.attempts) == (State.IN_DOUBT, 0)
