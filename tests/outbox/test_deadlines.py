"""How long a message may be handed over: until its own deadline, whatever it waited for; and not only for a while when
its receiver is away."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

import outbox
from outbox import channels
from outbox.channels.base import Deadline, Outcome, Parcel, boottime
from outbox.claims import Statements
from outbox.drain import Report
from outbox.errors import DeadlinePassed
from outbox.models import Message, State

from .conftest import MAIL
from .smtp_server import MailServer
from .test_email import make_due

pytestmark = pytest.mark.django_db(transaction=True)

Publish = Callable[..., Message]
Drain = Callable[..., Report]


def test_deadline_that_passes_between_intent_and_hand_over_is_kept(
    mail_server: MailServer, drain: Drain, on_event: Callable[..., None]
) -> None:
    deadline = timezone.now() + timedelta(seconds=2)
    with transaction.atomic():
        outbox.publish("email", MAIL, dedupe_key="k", deadline=deadline)

    def wait_for_it() -> None:
        while timezone.now() <= deadline:
            time.sleep(0.05)

    on_event("outbox.intent", wait_for_it)
    drain()
    message = Message.objects.get()
    assert (message.state, [entry["outcome"] for entry in message.history]) == (State.PENDING, ["not handed over"])
    make_due()
    drain()
    message.refresh_from_db()
    assert (message.state, message.last_error) == (State.DEAD, "its deadline passed before it could be sent")
    assert mail_server.received == []


def test_answer_that_comes_after_the_deadline_counts(mail_server: MailServer, publish: Publish) -> None:
    class PassesWithTheDot(Deadline):
        def check(self) -> None:
            if mail_server.received:
                raise DeadlinePassed

    mail_server.mode = "slow"
    payload: Any = publish().payload
    channel = channels.channel("email")
    answer = channel.send(Parcel(1, "email", "k", payload, 1, PassesWithTheDot(boottime() + 30)))
    channel.close()
    assert answer.outcome is Outcome.ACCEPTED


def test_receiver_that_is_away_for_longer_than_retries_go_on_kills_nothing(
    mail_server: MailServer, publish: Publish, drain: Drain, settings: Any
) -> None:
    def a_long_time_passes() -> None:
        ago = timezone.now() - settings.OUTBOX_RETRY_FOR - timedelta(hours=1)
        Message.objects.filter(first_attempt_at__isnull=False).update(first_attempt_at=ago)
        make_due()

    settings.OUTBOX_RETRY_FOR = timedelta(hours=2)
    mail_server.mode = "tempfail"
    publish("tried before")
    drain()
    mail_server.mode = "drop_at_connect"
    publish("not tried")
    drain()
    a_long_time_passes()
    drain()
    assert set(Message.objects.values_list("state", flat=True)) == {State.PENDING}
    # Back again, it is not in the mood at first: what it never saw before has all its time.
    mail_server.mode = "tempfail"
    a_long_time_passes()
    drain()
    assert Message.objects.get(dedupe_key="not tried").state == State.PENDING
    assert Message.objects.get(dedupe_key="tried before").state == State.DEAD


def test_message_that_was_given_back_before_it_left_has_all_of_its_time_yet(publish: Publish) -> None:
    """A drainer that is told to stop gives it back; days later the first answer is a greylisting."""
    message: Any = publish()
    statements = Statements("default")
    claim: Any = statements.claim("email", limit=1, ttl=timedelta(minutes=1), drainer="d")
    assert statements.mark_and_intend(0, {}, claim.number, [message.id])[1]
    assert statements.give_back(claim.number, [message.id]) == 1
    given_back: Any = Message.objects.get()
    assert (given_back.state, given_back.attempts, given_back.first_attempt_at) == (State.PENDING, 0, None)
