"""Replies that come out of turn: none is taken for the answer to something else, and none reaches the next message."""

import logging
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from outbox.drain import Report
from outbox.models import Message, State

from .smtp_server import MailServer

pytestmark = pytest.mark.django_db(transaction=True)

Publish = Callable[..., Message]
Drain = Callable[..., Report]


def fates() -> dict[str, str]:
    return dict(Message.objects.values_list("dedupe_key", "state"))


def test_an_acceptance_before_the_final_dot_is_none(mail_server: MailServer, publish: Publish, drain: Drain) -> None:
    publish("early", to="early_accept@example.org")
    publish("next")
    drain()
    assert fates() == {"early": State.PENDING, "next": State.SENT}
    assert "250 early" in Message.objects.get(dedupe_key="early").last_error
    assert len(mail_server.received) == 1


def test_a_refusal_while_the_text_is_on_its_way_is_heard(
    mail_server: MailServer, publish: Publish, drain: Drain
) -> None:
    publish("early", to="early_refuse@example.org", text="x" * 3_000_000)
    publish("next")
    drain()
    assert fates() == {"early": State.DEAD, "next": State.SENT}
    assert "552 too big" in Message.objects.get(dedupe_key="early").last_error


def test_a_second_answer_is_not_the_next_messages(mail_server: MailServer, publish: Publish, drain: Drain) -> None:
    mail_server.mode = "answer_twice"
    for number in range(4):
        publish(f"k{number}")
    drain()
    assert set(Message.objects.values_list("state", "attempts")) == {(State.SENT, 1)}
    assert len(mail_server.received) == 4


def test_a_reset_that_is_refused_does_not_kill_the_next_message(
    mail_server: MailServer, publish: Publish, drain: Drain
) -> None:
    mail_server.mode = "half_reset"
    publish("refused", to="refused@example.org")
    publish("next")
    publish("after")
    drain()
    assert fates() == {"refused": State.DEAD, "next": State.SENT, "after": State.SENT}


@pytest.fixture
def tls_server(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MailServer]:
    """A mail server that speaks TLS from the first byte."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=test"
    make += f" -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    subprocess.run(make.split(), check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    server = MailServer(tls=context)
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT, settings.EMAIL_TIMEOUT = "127.0.0.1", server.port, 1
    settings.EMAIL_USE_SSL = True
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    yield server
    server.close()


def test_over_tls_too_only_what_is_out_of_turn_ends_a_connection(
    tls_server: MailServer, publish: Publish, drain: Drain
) -> None:
    for number in range(5):
        publish(f"k{number}", text="x" * 100_000)
    drain()
    assert set(fates().values()) == {State.SENT}
    assert len(tls_server.connections) == 1
    publish("early", to="early_accept@example.org")
    publish("last")
    drain()
    assert (fates()["early"], fates()["last"]) == (State.PENDING, State.SENT)
    assert len(tls_server.received) == 6


def test_a_recipient_refused_for_now_is_not_lost(mail_server: MailServer, publish: Publish, drain: Drain) -> None:
    publish("both", to=["anna@example.org", "busy@example.org"], cc="refused@example.org")
    publish("next")
    drain()
    assert fates() == {"both": State.PENDING, "next": State.SENT}
    message = Message.objects.get(dedupe_key="both")
    assert "450 greylisted" in message.last_error
    assert "busy@example.org" in message.last_error
    assert (message.attempts, message.refused) == (1, {})
    assert [envelope.rcpt_tos for envelope in mail_server.received] == [("anna@example.org",)]


def test_a_recipient_refused_for_good_is_told_of(
    mail_server: MailServer, publish: Publish, drain: Drain, caplog: pytest.LogCaptureFixture
) -> None:
    def counted() -> float:
        return REGISTRY.get_sample_value("outbox_recipients_refused_total", {"channel": "email"}) or 0.0

    before = counted()
    publish("both", to=["anna@example.org", "refused@example.org"])
    publish("whole")
    with caplog.at_level(logging.WARNING, "outbox"):
        drain()
    assert set(fates().values()) == {State.SENT}
    (record,) = (r for r in caplog.records if getattr(r, "event", "") == "outbox.recipient_refused")
    data: Any = record
    assert data.outbox_id == Message.objects.get(dedupe_key="both").id
    assert "refused@example.org" in record.getMessage()
    assert "550 no such user" in record.getMessage()
    assert counted() == before + 1
