"""An outage costs no attempts, and does not hold up messages to others."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

import outbox
from outbox import breaker
from outbox.breaker import Breaker
from outbox.drain import Report, Until
from outbox.models import Message, State

from .conftest import drainer
from .http_server import Receiver
from .smtp_server import MailServer
from .test_webhook import EVENT, configure

Publish = Callable[..., Message]
Drain = Callable[..., Report]


def opened(host: str = "h") -> Breaker:
    made = Breaker()
    for _ in range(breaker.FAILURES_TO_OPEN):
        assert not made.is_open(host)
        made.record(host, unreachable=True)
    assert made.is_open(host)
    return made


def test_opens_after_failures_in_a_row_only() -> None:
    made = Breaker()
    for _ in range(20):
        for _ in range(breaker.FAILURES_TO_OPEN - 1):
            assert not made.record("h", unreachable=True)
        assert not made.record("h", unreachable=False)
    assert made.may_try("h")


def test_hosts_are_apart_and_any_answer_closes() -> None:
    made = opened("h")
    assert made.may_try("other")
    assert not made.may_try("h")
    assert made.open_hosts() == ["h"]
    assert made.record("h", unreachable=False)
    assert made.may_try("h")


def test_one_message_at_a_time_tries_a_host_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    made = opened("h")
    now = time.monotonic()
    pauses = []
    for _ in range(10):
        pauses.append(made.pause("h"))
        now += made.pause("h") + 0.01
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        assert made.may_try("h")
        assert not made.may_try("h")
        made.record("h", unreachable=True)
    assert breaker.FIRST_PAUSE * 0.7 < pauses[0] < breaker.FIRST_PAUSE * 1.3
    assert breaker.LONGEST_PAUSE * 0.7 < pauses[-1] < breaker.LONGEST_PAUSE * 1.3


def test_failures_of_what_was_on_its_way_already_make_the_first_pause_no_longer() -> None:
    made = opened("h")
    for _ in range(15):  # as many threads found out at the same moment
        made.record("h", unreachable=True)
    assert made.pause("h") < breaker.FIRST_PAUSE * 1.3


@pytest.mark.django_db(transaction=True)
def test_outage_spends_no_attempts_and_few_tries(
    mail_server: MailServer,
    publish: Publish,
    drain: Drain,
    monkeypatch: pytest.MonkeyPatch,
    settings: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings.OUTBOX_RETRY_BASE = timedelta(milliseconds=10)
    monkeypatch.setattr(breaker, "FIRST_PAUSE", 0.2)
    monkeypatch.setattr(breaker, "LONGEST_PAUSE", 0.4)
    mail_server.mode = "drop_at_connect"
    for number in range(50):
        publish(f"k{number}")
    drain(until=Until.STOPPED, max_runtime=timedelta(seconds=1.5))
    tries = len(mail_server.connections)
    assert breaker.FAILURES_TO_OPEN < tries < 20
    assert "The server of channel email takes nothing, and is tried rarely now: no connection" in caplog.text
    assert set(Message.objects.values_list("state", "attempts")) == {(State.PENDING, 0)}
    mail_server.mode = "accept"
    running = drainer(until=Until.STOPPED, max_runtime=timedelta(seconds=2))
    running.run()
    assert len(mail_server.received) == 50


@pytest.mark.django_db(transaction=True)
def test_one_receiver_that_is_away_does_not_hold_up_another(drain: Drain, settings: Any) -> None:
    receiver = Receiver()
    configure(settings, receiver.url)
    config: Any = settings.OUTBOX_CHANNELS["hook"]["OPTIONS"]["receivers"]
    config["away"] = {**config["crm"], "url": "http://127.0.0.1:9/"}
    try:
        with transaction.atomic():
            for number in range(30):
                for name in ("away", "crm"):
                    outbox.publish("hook", {**EVENT, "receiver": name}, dedupe_key=f"{name}{number}")
        drain(channel="hook", batch_size=10)
    finally:
        receiver.close()
    assert len(receiver.received) == 30
    away = Message.objects.filter(dedupe_key__startswith="away")
    assert set(away.values_list("state", "attempts")) == {(State.PENDING, 0)}
    assert not away.filter(available_at__lt=timezone.now() - timedelta(seconds=30)).exists()
