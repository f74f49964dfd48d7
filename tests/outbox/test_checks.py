"""Each check has an id, and a hint that says what to type."""

from datetime import timedelta
from typing import Any

import pytest
from django.core.checks import CheckMessage, run_checks
from django.db import connections, transaction

from outbox import publish

SMTP = "django.core.mail.backends.smtp.EmailBackend"


def found() -> list[CheckMessage]:
    return list(run_checks(tags=["outbox"], databases=[]))


def the_one(id: str) -> CheckMessage:
    (message,) = found()
    assert message.id == id
    assert message.hint
    return message


@pytest.fixture(autouse=True)
def _smtp(settings: Any) -> None:
    settings.EMAIL_BACKEND, settings.EMAIL_TIMEOUT = SMTP, 10


def test_nothing_is_wrong_with_the_defaults() -> None:
    assert found() == []


def test_w001_unknown_setting(settings: Any) -> None:
    settings.OUTBOX_CLAIM_TLL = timedelta(seconds=5)
    assert "OUTBOX_CLAIM_TLL" in the_one("outbox.W001").msg


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CLAIM_TTL", 60),
        ("MAX_CLAIM_TTL", 3600),
        ("BATCH_SIZE", "100"),
        ("BATCH_SIZE", 0),
        ("CONCURRENCY", True),
        ("RETRY_FOR", timedelta(0)),
    ],
)
def test_e001_setting_of_the_wrong_type_or_size(name: str, value: object, settings: Any) -> None:
    setattr(settings, f"OUTBOX_{name}", value)
    assert f"OUTBOX_{name}" in the_one("outbox.E001").msg


def test_e002_database_that_is_not_postgresql(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(connections["default"]), "vendor", "sqlite")
    assert "'default'" in the_one("outbox.E002").msg


def test_e003_claims_longer_than_any_claim_may_be(settings: Any) -> None:
    settings.OUTBOX_CLAIM_TTL = timedelta(hours=2)
    the_one("outbox.E003")


def test_e004_channel_that_cannot_be_made(settings: Any) -> None:
    settings.OUTBOX_CHANNELS = {"fax": {"BACKEND": "nowhere.Fax"}}
    assert "'fax'" in the_one("outbox.E004").msg


WEBHOOK = "outbox.channels.webhook.WebhookChannel"


@pytest.mark.parametrize(
    "config",
    [
        None,
        "x",
        {"BACKEND": 5},
        {"BACKEND": "django.core.mail.EmailMessage"},
        {"BACKEND": WEBHOOK, "OPTIONS": {"receivers": ["crm"]}},
        {"BACKEND": WEBHOOK, "OPTIONS": {"receivers": {"crm": "https://example.org/"}}},
        {"BACKEND": WEBHOOK, "OPTIONS": {"receivers": {"crm": {"url": "https://[::1", "secrets": ["whsec_x"]}}}},
        {"BACKEND": WEBHOOK, "OPTIONS": {"receivers": {}, "timeout_seconds": "5"}},
        {"BACKEND": WEBHOOK, "OPTIONS": {"receivers": {}, "timeout_seconds": 0}},
        {"BACKEND": WEBHOOK, "OPTIONS": {"receivers": {}, "timeout_seconds": -3}},
        {"BACKEND": WEBHOOK, "OPTIONS": {"receivers": {}, "timeout_seconds": float("nan")}},
        {"BACKEND": WEBHOOK, "OPTIONS": {"receivers": {}, "key_window_hours": 1e300}},
    ],
    ids=str,
)
def test_e004_configuration_that_no_channel_takes(config: object, settings: Any) -> None:
    settings.OUTBOX_CHANNELS = {"fax": config}
    assert "'fax'" in the_one("outbox.E004").msg


def test_e004_name_that_is_no_text(settings: Any) -> None:
    settings.OUTBOX_CHANNELS = {5: {"BACKEND": "outbox.channels.job.JobChannel"}}
    assert "name" in the_one("outbox.E004").msg


@pytest.mark.parametrize(
    ("name", "value"),
    [("EMAIL_TIMEOUT", "10"), ("EMAIL_BACKEND", "nowhere.Backend"), ("EMAIL_USE_SSL", True)],
)
def test_e004_mail_settings_that_make_no_connection(name: str, value: object, settings: Any) -> None:
    settings.EMAIL_USE_TLS = True
    setattr(settings, name, value)
    assert "'email'" in the_one("outbox.E004").msg


def test_e004_mailer_that_does_not_exist(settings: Any) -> None:
    email = {"BACKEND": "outbox.channels.email.EmailChannel", "OPTIONS": {"using": "nobody"}}
    settings.OUTBOX_CHANNELS = {"email": email}
    assert "'nobody'" in the_one("outbox.E004").msg


def test_e005_mail_without_a_timeout(settings: Any) -> None:
    settings.EMAIL_TIMEOUT = None
    assert "EMAIL_TIMEOUT" in (the_one("outbox.E005").hint or "")


def test_e006_claim_that_ends_before_a_send_does(settings: Any) -> None:
    settings.EMAIL_TIMEOUT = 40
    assert "timedelta(seconds=160)" in (the_one("outbox.E006").hint or "")


def test_e006_send_that_may_take_no_time(settings: Any) -> None:
    settings.EMAIL_TIMEOUT = -1
    assert "-1 s" in the_one("outbox.E006").msg


@pytest.mark.django_db
def test_w007_messages_of_a_channel_that_is_not_configured(settings: Any) -> None:
    def found() -> list[CheckMessage]:
        return list(run_checks(tags=["outbox"], databases=["default"]))

    with transaction.atomic():
        publish("email", {"to": "a@example.org", "subject": "s", "text": "t"}, dedupe_key="k")
    assert found() == []
    settings.OUTBOX_CHANNELS = {}
    (message,) = found()
    assert message.id == "outbox.W007"
    assert "'email'" in message.msg
    assert message.hint
