"""What a person decides: guarded, with a reason, written down; and the commands for it."""

import io
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

import outbox
from outbox import signals
from outbox.claims import Statements
from outbox.decisions import Action, decide
from outbox.drain import Report
from outbox.errors import DecisionRefused
from outbox.models import Decision, Message, State

from .smtp_server import MailServer

pytestmark = pytest.mark.django_db(transaction=True)

Publish = Callable[..., Message]
Drain = Callable[..., Report]
MINUTE = timedelta(minutes=1)
STATES: dict[str, dict[str, Any]] = {
    "pending": {},
    "claimed": {"claim": 1, "claimed_until": timezone.now() + timedelta(hours=1)},
    "sending": {"claim": 1, "claimed_until": timezone.now() + timedelta(hours=1)},
    "sent": {"sent_at": timezone.now()},
    "in_doubt": {"claim": 1},
    "dead": {},
    "cancelled": {},
}
ALLOWED = {
    Action.ARRIVED: {"in_doubt": "sent"},
    Action.SEND_AGAIN: {"in_doubt": "pending"},
    Action.REQUEUE: {"dead": "pending"},
    Action.CANCEL: dict.fromkeys(("pending", "claimed", "in_doubt", "dead"), "cancelled"),
}


def in_state(publish: Publish, state: str) -> Message:
    message = publish(state)
    Message.objects.filter(id=message.id).update(state=state, **STATES[state])
    return message


def run(*arguments: str) -> tuple[str, int]:
    output = io.StringIO()
    try:
        call_command("outbox", *arguments, stdout=output, stderr=output)
    except SystemExit as error:
        return output.getvalue(), int(error.code or 0)
    return output.getvalue(), 0


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("state", STATES)
def test_each_decision_from_each_state(action: Action, state: str, publish: Publish) -> None:
    message = in_state(publish, state)
    after = ALLOWED[action].get(state)
    if after is None:
        with pytest.raises(DecisionRefused):
            decide(action, message.id, reason="because", by="eve")
        assert not Decision.objects.exists()
        assert Message.objects.get().state == state
        return
    decide(action, message.id, reason="because", by="eve")
    assert Message.objects.get().state == after
    decision = Decision.objects.get()
    assert (decision.by, decision.reason, decision.state_before, decision.state_after) == (
        "eve",
        "because",
        state,
        after,
    )


def test_decision_needs_a_reason(publish: Publish) -> None:
    message = in_state(publish, "in_doubt")
    with pytest.raises(DecisionRefused, match="a reason is needed"):
        decide(Action.ARRIVED, message.id, reason=" ", by="eve")


def test_send_again_is_refused_while_a_drainer_may_still_hand_it_over(publish: Publish) -> None:
    message = publish()
    far = timezone.now() + timedelta(days=1)  # a clock that was wrong wrote it; the drainer may be at work
    Message.objects.update(state="sending", claim=1, claimed_until=far)
    (swept,) = Statements("default").sweep([])
    assert swept.state == "in_doubt"
    with pytest.raises(DecisionRefused, match="may still be handing it over until"):
        decide(Action.SEND_AGAIN, message.id, reason="r", by="eve")
    Message.objects.update(available_at=timezone.now() - MINUTE)
    decide(Action.SEND_AGAIN, message.id, reason="r", by="eve")


def test_owner_of_a_message_may_refuse_to_have_it_sent_after_all(publish: Publish) -> None:
    asked: list[tuple[str, str]] = []

    def refuse(sender: type[Message], *, dedupe_key: str, action: str, **more: Any) -> str | None:
        asked.append((dedupe_key, action))
        return "it is no longer so" if dedupe_key != "ours" else None

    doubtful, dead, ours = in_state(publish, "in_doubt"), in_state(publish, "dead"), publish("ours")
    Message.objects.filter(id=ours.id).update(state="dead")
    signals.resending.connect(refuse)
    try:
        for action, message in {Action.SEND_AGAIN: doubtful, Action.REQUEUE: dead}.items():
            with pytest.raises(DecisionRefused, match="it is no longer so"):
                decide(action, message.id, reason="r", by="eve")
        assert run("resolve", "--send-again", "--reason", "r", "in_doubt")[1] == 1
        assert not Decision.objects.exists()
        decide(Action.REQUEUE, ours.id, reason="r", by="eve")
        decide(Action.ARRIVED, doubtful.id, reason="r", by="eve")  # nothing is sent by that: nobody is asked
        decide(Action.CANCEL, dead.id, reason="r", by="eve")
    finally:
        signals.resending.disconnect(refuse)
    assert asked == [("in_doubt", "send again"), ("dead", "requeue"), ("in_doubt", "send again"), ("ours", "requeue")]
    assert dict(Message.objects.values_list("dedupe_key", "state")) == {
        "in_doubt": "sent",
        "dead": "cancelled",
        "ours": "pending",
    }


def test_send_again_sends_the_same_bytes_with_a_fresh_budget(
    mail_server: MailServer, publish: Publish, drain: Drain
) -> None:
    mail_server.mode = "drop_after_dot"
    message = publish()
    drain()
    assert Message.objects.get().state == State.IN_DOUBT
    mail_server.mode = "tempfail"
    decide(Action.SEND_AGAIN, message.id, reason="customer has nothing", by="eve")
    drain()
    assert Message.objects.get().attempts == 1
    mail_server.mode = "accept"
    Message.objects.update(available_at=timezone.now() - MINUTE)
    drain()
    assert Message.objects.get().state == State.SENT
    assert len(mail_server.received) == 2
    assert len({envelope.data for envelope in mail_server.received}) == 1


def test_dead_message_past_its_deadline_is_not_requeued(publish: Publish) -> None:
    message = in_state(publish, "dead")
    Message.objects.update(deadline_at=timezone.now() - MINUTE)
    with pytest.raises(DecisionRefused, match="deadline passed"):
        decide(Action.REQUEUE, message.id, reason="r", by="eve")


def test_status_tells_what_is_unfinished(publish: Publish) -> None:
    assert run("status") == ("nothing is unfinished\n", 0)
    for state in STATES:
        in_state(publish, state)
    output, code = run("status", "--json")
    assert code == 3
    (email,) = json.loads(output)
    figures = {name: email[name] for name in ("due", "later", "claimed", "sending", "in_doubt", "dead")}
    assert figures == {"due": 1, "later": 0, "claimed": 1, "sending": 1, "in_doubt": 1, "dead": 1}
    output, code = run("status")
    assert output.startswith("email: 1 due, 1 claimed, 1 sending, 1 in doubt, 1 dead, oldest due for ")


def test_show_tells_everything(publish: Publish) -> None:
    message = in_state(publish, "in_doubt")
    decide(Action.ARRIVED, message.id, reason="seen in the log", by="eve")
    for name in ("in_doubt", f"#{message.id}"):
        output, _ = run("show", name)
        assert "anna@example.org" in output
        assert "by=eve" in output
        assert "seen in the log" in output
    assert json.loads(run("show", "in_doubt", "--json")[0])["state"] == "sent"
    with pytest.raises(CommandError, match="no message 'unknown'"):
        run("show", "unknown")


def test_resolve_and_cancel_by_command(publish: Publish) -> None:
    in_state(publish, "in_doubt")
    in_state(publish, "sent")
    output, code = run("resolve", "--arrived", "--reason", "r", "in_doubt", "sent")
    assert code == 1
    assert "arrived: email message in_doubt (sent)" in output
    assert "cannot 'arrived': it is sent" in output
    assert "@" in Decision.objects.get().by
    in_state(publish, "pending")
    assert "would cancel" in run("cancel", "--reason", "r", "--dry-run", "pending")[0]
    assert Message.objects.get(dedupe_key="pending").state == State.PENDING
    assert run("cancel", "--reason", "r", "pending")[1] == 0
    assert Message.objects.get(dedupe_key="pending").state == State.CANCELLED


def test_requeue_all_dead_of_a_channel(publish: Publish) -> None:
    # outbox A16
    for number in range(3):
        publish(f"k{number}")
    Message.objects.update(state=State.DEAD)
    Message.objects.filter(dedupe_key="k0").update(channel="fax")
    assert run("requeue", "--all-dead", "--channel", "email", "--reason", "r")[1] == 0
    assert dict(Message.objects.values_list("dedupe_key", "state")) == {"k0": "dead", "k1": "pending", "k2": "pending"}
    with pytest.raises(CommandError, match="use --all-dead"):
        run("requeue", "--reason", "r")


def test_prune_empties_the_payload_and_keeps_the_key(publish: Publish) -> None:
    old = timezone.now() - timedelta(days=500)
    for state in STATES:
        in_state(publish, state)
    publish("young")
    Message.objects.filter(dedupe_key="young").update(state="sent", sent_at=timezone.now())
    Message.objects.update(created_at=old)
    Message.objects.filter(dedupe_key="sent").update(sent_at=old)
    assert "would empty 2" in run("prune", "--older-than", "400", "--dry-run")[0]
    assert run("prune", "--older-than", "400", "--batch-size", "1") == ("emptied 2 messages\n", 0)
    assert set(Message.objects.filter(payload__isnull=True).values_list("dedupe_key", flat=True)) == {
        "sent",
        "cancelled",
    }
    assert publish("sent").state == State.SENT  # the same content is still recognised
    assert run("prune", "--older-than", "400") == ("emptied 0 messages\n", 0)


def test_prune_passes_by_what_somebody_holds(publish: Publish) -> None:
    import psycopg

    for number in range(2):
        publish(f"k{number}")
    Message.objects.update(state="sent", sent_at=timezone.now() - timedelta(days=500))
    given = connection.get_connection_params()
    with psycopg.connect(
        **{name: given[name] for name in ("host", "port", "user", "password", "dbname") if given.get(name)}
    ) as other:
        other.execute("SELECT 1 FROM outbox_message WHERE dedupe_key = 'k0' FOR UPDATE")
        assert run("prune", "--older-than", "400") == ("emptied 1 message\n", 0)


def test_pruning_what_is_not_done_is_refused_by_the_database(publish: Publish) -> None:
    in_state(publish, "dead")
    with pytest.raises(IntegrityError, match="pruned_only_when_done"):
        Message.objects.update(payload=None)


@pytest.mark.parametrize("action", [Action.SEND_AGAIN, Action.CANCEL])
def test_cancel_says_no_when_a_person_decided_while_the_receiver_may_have_it(action: Action, publish: Publish) -> None:
    # What was in doubt may have arrived, whatever was decided since: a caller who takes it back has to tell somebody.
    message = in_state(publish, "in_doubt")
    decide(action, message.id, reason="customer called", by="anna")
    with transaction.atomic():
        assert not outbox.cancel(message.dedupe_key)
    assert Message.objects.get().state == State.CANCELLED
