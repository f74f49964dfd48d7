"""The email channel against a real mail server: what may be sent again, what may not, and the same bytes each time."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import django
import pytest
from django.core import mail
from django.core.management import call_command
from django.utils import timezone

from outbox import breaker
from outbox.channels import lookups
from outbox.drain import Report
from outbox.inspection import status
from outbox.models import Message, State

from .smtp_server import MailServer

pytestmark = pytest.mark.django_db(transaction=True)

Publish = Callable[..., Message]
Drain = Callable[..., Report]


def make_due() -> None:
    Message.objects.filter(state=State.PENDING).update(available_at=timezone.now() - timedelta(seconds=1))


def test_mail_arrives_once_as_it_was_rendered(mail_server: MailServer, publish: Publish, drain: Drain) -> None:
    published: Any = publish().payload
    report = drain()
    assert report.tally["sent"] == 1
    (envelope,) = mail_server.received
    assert envelope.mail_from == "b@example.com"
    assert envelope.rcpt_tos == ("anna@example.org",)
    assert envelope.data.decode("ascii") == published["raw"]
    message = Message.objects.get()
    assert (message.state, message.attempts, message.provider_id) == (State.SENT, 1, "250 queued as 1")
    assert drain().tally["sent"] == 0
    assert len(mail_server.received) == 1


def test_mail_goes_out_through_the_mailer_of_its_channel(
    mail_server: MailServer, publish: Publish, drain: Drain, settings: Any
) -> None:
    """Django 6.1 knows several, by their aliases; before it there is one."""
    alias = "default"
    if django.VERSION >= (6, 1):
        alias = "invoices"
        for name in ("EMAIL_BACKEND", "EMAIL_HOST", "EMAIL_PORT", "EMAIL_TIMEOUT"):
            delattr(settings, name)
        smtp = {"OPTIONS": {"host": "127.0.0.1", "port": mail_server.port, "timeout": 1}}
        settings.MAILERS = {"default": {"BACKEND": "django.core.mail.backends.dummy.EmailBackend"}, alias: smtp}
    email = {"BACKEND": "outbox.channels.email.EmailChannel", "OPTIONS": {"using": alias}}
    settings.OUTBOX_CHANNELS = {"email": email}
    publish()
    drain()
    assert Message.objects.get().state == State.SENT
    assert len(mail_server.received) == 1


# What the server does; where the message must stand then; how often the server has it.
FATES = {
    "refuse_connection": (State.PENDING, 0),
    "busy_connection": (State.PENDING, 0),
    "drop_at_connect": (State.PENDING, 0),
    "drop_at_mail": (State.PENDING, 0),
    "busy_at_mail": (State.PENDING, 0),
    "drop_before_dot": (State.PENDING, 0),
    "drop_after_dot": (State.IN_DOUBT, 1),
    "hang_after_dot": (State.IN_DOUBT, 1),
    "nonsense_after_dot": (State.IN_DOUBT, 1),
    "tempfail": (State.PENDING, 0),
    "permfail": (State.DEAD, 0),
    "tempfail_rcpt": (State.PENDING, 0),
    "permfail_rcpt": (State.DEAD, 0),
    "weird_reply": (State.SENT, 1),
    "drop_at_quit": (State.SENT, 1),
    "drop_when_idle": (State.SENT, 1),
    "slow": (State.SENT, 1),
}


@pytest.mark.parametrize("mode", FATES)
def test_each_misbehaviour_has_its_fate(mode: str, mail_server: MailServer, publish: Publish, drain: Drain) -> None:
    # outbox A4, A8, A13: a timeout after the final dot is no failure
    state, received = FATES[mode]
    mail_server.mode = mode
    text = "x" * 3_000_000 if mode == "drop_before_dot" else "short"
    publish(text=text)
    drain()
    message = Message.objects.get()
    assert message.state == state, message.last_error
    assert len(mail_server.received) == received
    if state != State.SENT:
        assert message.last_error
    # Nothing that the server has is ever sent again; everything else is, once the server behaves.
    mail_server.mode = "accept"
    make_due()
    drain()
    assert len(mail_server.received) == (0 if state == State.DEAD else 1)


def test_channel_that_prefers_two_to_none_sends_again_when_in_doubt(
    mail_server: MailServer, publish: Publish, drain: Drain, settings: Any
) -> None:
    email = {"BACKEND": "outbox.channels.email.EmailChannel", "IN_DOUBT": "resend"}
    settings.OUTBOX_CHANNELS = {"email": email}
    mail_server.mode = "drop_after_dot"
    publish()
    drain()
    assert Message.objects.get().state == State.PENDING
    publish("of a killed drainer")
    past = timezone.now() - timedelta(minutes=1)
    Message.objects.filter(attempts=0).update(state=State.SENDING, claim=1, claimed_until=past, first_attempt_at=past)
    mail_server.mode = "accept"
    make_due()
    drain()
    assert set(Message.objects.values_list("state", flat=True)) == {State.SENT}
    first, *again = (envelope for envelope in mail_server.received if b"Invoice 7" in envelope.data)
    assert len(again) == 2
    assert first.data in [envelope.data for envelope in again]


def test_naive_sender_cannot_tell_the_two_sides_of_the_final_dot(mail_server: MailServer) -> None:
    """Django's backend raises the same class for a mail the server never had and for one it has; sent again: twice."""
    raised = {}
    for mode in ("drop_at_mail", "drop_after_dot"):
        mail_server.mode = mode
        with pytest.raises(Exception) as caught:  # noqa: PT011  # that it says no more is the point
            mail.send_mail("Invoice 7", "text", "b@example.com", ["anna@example.org"])
        raised[mode] = type(caught.value), str(caught.value)
    assert raised["drop_at_mail"] == raised["drop_after_dot"]
    assert len(mail_server.received) == 1
    mail_server.mode = "accept"
    mail.send_mail("Invoice 7", "text", "b@example.com", ["anna@example.org"])
    assert len(mail_server.received) == 2


def test_bytes_are_equal_on_every_attempt(mail_server: MailServer, publish: Publish, drain: Drain) -> None:
    pdf = {"name": "invoice.pdf", "type": "application/pdf", "base64": "JVBERi0="}
    published: Any = publish(html="<p>Grüße</p>", attachments=[pdf]).payload
    for mode in ("tempfail", "drop_at_mail", "accept"):
        mail_server.mode = mode
        make_due()
        drain()
    (envelope,) = mail_server.received
    assert envelope.data.decode("ascii") == published["raw"]
    assert envelope.message_id == published["message_id"]
    message = Message.objects.get()
    assert message.attempts == 3
    assert [entry["outcome"] for entry in message.history] == ["refused temporarily", "not handed over"]


def test_a_server_that_is_not_there_costs_no_attempts(mail_server: MailServer, publish: Publish, drain: Drain) -> None:
    mail_server.mode = "drop_at_connect"
    publish()
    for _ in range(3):
        make_due()
        drain()
    message = Message.objects.get()
    assert (message.state, message.attempts, message.history) == (State.PENDING, 0, [])
    assert f"no connection to 127.0.0.1:{mail_server.port}" in message.last_error


def test_refused_recipients_are_recorded(mail_server: MailServer, publish: Publish, drain: Drain) -> None:
    publish(to=["anna@example.org", "refused@example.org"])
    drain()
    message = Message.objects.get()
    assert message.state == State.SENT
    assert message.refused == {"refused@example.org": "550 no such user"}
    assert mail_server.received[0].rcpt_tos == ("anna@example.org",)


def test_one_connection_carries_many_mails(
    mail_server: MailServer, publish: Publish, drain: Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[Any] = []
    bounded = lookups.bounded

    def watched(key: Any, *rest: Any) -> Any:
        looked_up.append(key)
        return bounded(key, *rest)

    monkeypatch.setattr(lookups, "bounded", watched)
    for number in range(20):
        publish(f"k{number}")
    drain()
    assert len(mail_server.received) == 20
    assert len(mail_server.connections) == 1
    # Each starts a thread: of several per mail, half of what a drainer can send in a second would be left.
    assert [key[0] for key in looked_up] == ["own name", "addresses"]


def test_a_connection_that_the_server_closed_meanwhile_is_opened_again(
    mail_server: MailServer, publish: Publish, drain: Drain
) -> None:
    mail_server.mode = "drop_when_idle"
    for number in range(5):
        publish(f"k{number}")
    drain()
    assert len(mail_server.received) == 5
    assert set(Message.objects.values_list("state", "attempts")) == {(State.SENT, 1)}


def test_poison_among_neighbours_stops_nobody(mail_server: MailServer, publish: Publish, drain: Drain) -> None:
    # outbox A6, A17, A31
    poison = {"permfail": "dead", "drop_after_dot": "in_doubt", "tempfail": "pending", "weird_reply": "sent"}
    for number in range(40):
        publish(f"k{number}")
    for local_part in poison:
        publish(local_part, to=f"{local_part}@example.org")
    publish("unreadable")
    Message.objects.filter(dedupe_key="unreadable").update(payload={"raw": 7})
    drain(concurrency=4)
    assert dict(Message.objects.exclude(dedupe_key__startswith="k").values_list("dedupe_key", "state")) == {
        **poison,
        "unreadable": "dead",
    }
    assert set(Message.objects.filter(dedupe_key__startswith="k").values_list("state", flat=True)) == {State.SENT}
    assert len(mail_server.received) == 42


def test_attempt_budget_ends_in_dead(mail_server: MailServer, publish: Publish, drain: Drain, settings: Any) -> None:
    # outbox A32
    settings.OUTBOX_MAX_ATTEMPTS = 3
    mail_server.mode = "tempfail"
    publish()
    for _ in range(5):
        make_due()
        drain()
    message = Message.objects.get()
    assert (message.state, message.attempts) == (State.DEAD, 3)
    assert "451 try later" in message.last_error
    assert len(message.history) == 3


def test_wall_clock_budget_ends_in_dead(mail_server: MailServer, publish: Publish, drain: Drain) -> None:
    # outbox A15: five attempts in five seconds, then parked for ever, is no budget
    mail_server.mode = "tempfail"
    publish()
    drain()
    assert Message.objects.get().state == State.PENDING
    Message.objects.update(first_attempt_at=timezone.now() - timedelta(days=3))
    make_due()
    drain()
    assert Message.objects.get().state == State.DEAD


def test_retries_wait_longer_each_time_with_full_jitter(settings: Any) -> None:
    # outbox A29
    from outbox import retries

    settings.OUTBOX_RETRY_BASE, settings.OUTBOX_RETRY_CAP = timedelta(seconds=10), timedelta(seconds=100)
    for attempt, most in {1: 10, 2: 20, 3: 40, 4: 80, 5: 100, 50: 100}.items():
        delays = [retries.delay(attempt).total_seconds() for _ in range(500)]
        assert 0 <= min(delays) < most * 0.1
        assert most * 0.9 < max(delays) <= most
    assert retries.delay(1, timedelta(minutes=5)) == timedelta(minutes=5)


def test_a_refused_message_does_not_come_back_in_the_same_pass(
    mail_server: MailServer, publish: Publish, drain: Drain, settings: Any
) -> None:
    # outbox A30
    settings.OUTBOX_RETRY_BASE = timedelta(hours=1)
    mail_server.mode = "tempfail"
    publish()
    assert drain().tally["claimed"] == 1


@pytest.mark.parametrize(
    "backend", ["django.core.mail.backends.locmem.EmailBackend", "tests.outbox.backends.LiarBackend"]
)
def test_other_backends_are_used_as_a_whole(backend: str, publish: Publish, drain: Drain, settings: Any) -> None:
    settings.EMAIL_BACKEND = backend
    pdf = {"name": "invoice.pdf", "type": "application/pdf", "base64": "JVBERi0="}
    content = {"to": "Anna <anna@example.org>", "bcc": ["c@example.org"], "html": "<p>Grüße</p>", "attachments": [pdf]}
    published: Any = publish(**content, headers={"X-Run": "1"}).payload
    drain()
    message = Message.objects.get()
    if backend.endswith("LiarBackend"):
        # It says that it sent none, and raises nothing: nobody knows.
        assert message.state == State.IN_DOUBT
        assert "gave 0, not 1" in message.last_error
        return
    assert message.state == State.SENT
    (sent,) = mail.outbox
    assert isinstance(sent, mail.EmailMultiAlternatives)
    assert sent.subject == "Invoice 7"
    assert sent.body == "Grüße, bitte zahlen.\n.\n"
    assert (sent.to, sent.bcc) == (["Anna <anna@example.org>"], ["c@example.org"])
    assert sent.recipients() == ["Anna <anna@example.org>", "c@example.org"]
    assert sent.alternatives[0][0] == "<p>Grüße</p>\n"
    assert sent.attachments[0][:2] == ("invoice.pdf", b"%PDF-")
    assert sent.extra_headers["Message-ID"] == published["message_id"]
    assert sent.extra_headers["X-Run"] == "1"
    assert "Date" in sent.extra_headers
    verbatim: Any = sent.message()
    assert verbatim["Message-ID"] == published["message_id"]
    assert verbatim.as_bytes(linesep="\r\n").decode("ascii") == published["raw"]


def test_a_backend_that_raises_leaves_the_message_in_doubt(publish: Publish, drain: Drain, settings: Any) -> None:
    settings.EMAIL_BACKEND = "tests.outbox.backends.RaisingBackend"
    publish()
    drain()
    message = Message.objects.get()
    assert message.state == State.IN_DOUBT
    assert "RuntimeError: no idea" in message.last_error


def test_login_that_cannot_even_be_said_is_known_not_to_be_handed_over(
    mail_server: MailServer, publish: Publish, drain: Drain, settings: Any
) -> None:
    # smtplib raises UnicodeEncodeError for such a password: neither OSError nor SMTPException.
    mail_server.extensions = [b"AUTH LOGIN PLAIN"]
    settings.EMAIL_HOST_USER, settings.EMAIL_HOST_PASSWORD = "anna", "pässword"
    publish()
    drain()
    message = Message.objects.get()
    assert (message.state, message.attempts) == (State.PENDING, 0)


# RFC 5321 and 4954: what the server says at MAIL or RCPT, or to a login; where the message stands then, and after how
# many attempts.
NOT_LET_IN = dict.fromkeys((421, 454, 530, 534, 535, 538), (State.PENDING, 0))
CODES = {**NOT_LET_IN, 450: (State.PENDING, 1), 451: (State.PENDING, 1), 452: (State.PENDING, 1), 550: (State.DEAD, 1)}


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("step", ["code_at_mail", "code_at_rcpt"])
def test_server_that_does_not_let_us_in_costs_no_message_anything(
    code: int, step: str, mail_server: MailServer, publish: Publish, drain: Drain, settings: Any
) -> None:
    settings.OUTBOX_RETRY_BASE = timedelta(hours=1)
    mail_server.mode, mail_server.code = step, code
    for number in range(breaker.FAILURES_TO_OPEN + 5):
        publish(f"k{number}")
    drain()
    state, attempts = CODES[code]
    if step == "code_at_rcpt" and code == 421:
        attempts = 1  # also how a server says that it has had enough of this one message
    assert set(Message.objects.exclude(last_error="").values_list("state", "attempts")) == {(state, attempts)}
    # The others were not even tried: the breaker is open.
    untouched = Message.objects.filter(last_error="").count()
    assert untouched == (5 if attempts == 0 else 0)
    assert str(code) in Message.objects.exclude(last_error="")[0].last_error
    mail_server.mode = "accept"
    make_due()
    drain()
    assert len(mail_server.received) == (0 if state == State.DEAD else breaker.FAILURES_TO_OPEN + 5)


@pytest.mark.parametrize("code", sorted({*NOT_LET_IN} - {421}))
def test_login_that_is_refused_costs_no_attempts(
    code: int,
    mail_server: MailServer,
    publish: Publish,
    drain: Drain,
    settings: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings.OUTBOX_RETRY_BASE = timedelta(hours=1)
    mail_server.extensions, mail_server.code = [b"AUTH PLAIN"], code
    settings.EMAIL_HOST_USER, settings.EMAIL_HOST_PASSWORD = "anna", "secret"
    publish()
    drain()
    message = Message.objects.get()
    assert (message.state, message.attempts) == (State.PENDING, 0)
    assert f"the server did not let us in: {code}" in message.last_error
    (channel,) = status("default")
    assert (channel.later, channel.retrying, channel.last_error) == (1, 1, message.last_error)
    call_command("outbox", "status")
    assert "email: 1 later (1 of these tried before)\n" in capsys.readouterr().out
    call_command("outbox", "show", message.dedupe_key)
    shown = capsys.readouterr().out
    assert "0 (those that found nobody there are not counted)" in shown
    assert "\nSubject: " in shown  # a mail is read as a mail
    assert "\\r\\n" not in shown
