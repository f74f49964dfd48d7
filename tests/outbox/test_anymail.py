"""django-anymail, with the backend it has for tests: a provider's no is a no, silence is a doubt."""

import base64
from collections.abc import Callable
from typing import Any

import pytest
from anymail.exceptions import AnymailAPIError
from anymail.message import AnymailRecipientStatus
from django.core import mail

from outbox.channels import email
from outbox.drain import Report
from outbox.models import Message, State

pytestmark = pytest.mark.django_db(transaction=True)

Publish = Callable[..., Message]
Drain = Callable[..., Report]


class Response:
    reason, text = "", ""

    def __init__(self, status_code: int, **headers: str) -> None:
        self.status_code, self.headers = status_code, headers


@pytest.fixture
def answer(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Let the provider answer with this."""
    settings.EMAIL_BACKEND = "anymail.backends.test.EmailBackend"

    def answer(error: object) -> None:
        monkeypatch.setattr(email.StoredEmail, "anymail_test_response", error, raising=False)

    return answer


def test_accepted_mail_keeps_its_content_and_message_id(
    answer: Callable[[object], None], publish: Publish, drain: Drain
) -> None:
    pdf = {"name": "invoice.pdf", "type": "application/pdf", "base64": "JVBERi0="}
    published: Any = publish(html="<p>Grüße</p>", cc=["c@example.org"], attachments=[pdf]).payload
    drain()
    assert Message.objects.get().state == State.SENT
    (sent,) = mail.outbox
    given: Any = getattr(sent, "anymail_test_params")  # noqa: B009  # the test backend adds it
    assert given["subject"] == "Invoice 7"
    assert [address.addr_spec for address in given["to"]] == ["anna@example.org"]
    assert [address.addr_spec for address in given["cc"]] == ["c@example.org"]
    assert "<p>Grüße</p>" in given["html_body"]
    assert given["attachments"][0].name == "invoice.pdf"
    assert given["extra_headers"]["Message-ID"] == published["message_id"]
    assert Message.objects.get().provider_id


@pytest.mark.parametrize(
    ("type", "data"),
    [
        ("text/csv", "Müller;1,50 €\r\n".encode()),
        ("text/csv", "Müller\n".encode("latin-1")),
        ("text/csv; charset=utf-8", "Müller\r\n".encode()),
        ("text/html", "<p>ü".encode()),
        ("text/calendar; method=REQUEST", "SUMMARY:Müller".encode()),
        ("application/json", '{"ü":1}'.encode()),
        ("application/pdf", bytes(range(256))),
    ],
)
def test_attachments_arrive_byte_for_byte(
    type: str, data: bytes, answer: Callable[[object], None], publish: Publish, drain: Drain
) -> None:
    publish(attachments=[{"name": "a", "type": type, "base64": base64.b64encode(data).decode()}])
    drain()
    assert Message.objects.get().state == State.SENT
    given: Any = getattr(mail.outbox[0], "anymail_test_params")  # noqa: B009  # the test backend adds it
    (attachment,) = given["attachments"]
    assert base64.b64decode(attachment.b64content) == data


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (AnymailAPIError("no", status_code=422, response=Response(422)), State.DEAD),
        (AnymailAPIError("no", status_code=401, response=Response(401)), State.PENDING),
        (AnymailAPIError("no", status_code=429, response=Response(429)), State.PENDING),
        (AnymailAPIError("no", status_code=500, response=Response(500)), State.IN_DOUBT),
        (AnymailAPIError("timed out"), State.IN_DOUBT),
        ({"recipient_status": {"anna@example.org": AnymailRecipientStatus(None, "rejected")}}, State.DEAD),
    ],
)
def test_each_answer_of_a_provider_has_its_fate(
    error: object, state: str, answer: Callable[[object], None], publish: Publish, drain: Drain
) -> None:
    answer(error)
    publish()
    drain()
    message = Message.objects.get()
    assert message.state == state, message.last_error
