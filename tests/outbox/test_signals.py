"""Whoever wants to know hears of messages that wait for a person, and cannot stop the drain."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from outbox import signals
from outbox.drain import Report
from outbox.models import Message

from .smtp_server import MailServer

pytestmark = pytest.mark.django_db(transaction=True)

Publish = Callable[..., Message]
Drain = Callable[..., Report]


@pytest.fixture
def heard() -> Iterator[list[dict[str, Any]]]:
    calls: list[dict[str, Any]] = []

    def listen(sender: type[Message], **data: Any) -> None:
        state = Message.objects.get(id=data["message_id"]).state
        calls.append({**data, "written down": state == data["state"]})
        raise RuntimeError("a receiver that fails")

    signals.parked.connect(listen)
    yield calls
    signals.parked.disconnect(listen)


def test_parked_messages_are_told_once_after_they_were_written_down(
    mail_server: MailServer, publish: Publish, drain: Drain, heard: list[dict[str, Any]]
) -> None:
    for local_part in ("drop_after_dot", "permfail", "anna", "tempfail"):
        publish(local_part, to=f"{local_part}@example.org")
    publish("held")
    past = timezone.now() - timedelta(minutes=1)
    Message.objects.filter(dedupe_key="held").update(state="sending", claim=1, claimed_until=past)
    drain()
    assert {(call["dedupe_key"], call["state"]) for call in heard} == {
        ("drop_after_dot", "in_doubt"),
        ("permfail", "dead"),
        ("held", "in_doubt"),
    }
    assert len(heard) == 3
    assert all(call["written down"] and call["reason"] and call["using"] == "default" for call in heard)
