"""Operators are mailed about leases that ended under a running holder: once each, and not without end."""

from datetime import timedelta
from typing import Any

import pytest

from leases import hold, incidents
from leases.errors import LeaseLost
from leases.models import Incident
from leases.process import ProcessIdentity
from outbox.models import Message
from outbox.signals import parked
from project.alerts import MAILS_PER_HOUR
from tests.leases.conftest import redis, steal  # noqa: F401 - the fixture
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def operators(settings: Any) -> None:
    settings.ALERT_EMAILS = ["ops@example.org", "night@example.org"]


def report(token: int, fate: Incident.Fate = Incident.Fate.UNKNOWN) -> None:
    incidents.report(
        Incident.Detector.UNRELEASED_RECORD,
        resource="customer:1",
        token=token,
        holder="a" * 32,
        process=ProcessIdentity("worker-3", 7, ""),
        fate=fate,
        using="default",
    )


def test_frozen_holder_is_mailed_to_every_operator_through_the_outbox() -> None:
    with pytest.raises(LeaseLost), hold("customer:1", ttl=timedelta(milliseconds=600)) as lease:
        steal("customer:1")
        wait_until(lambda: not lease.is_held)
    wait_until(lambda: Message.objects.count() == 2)
    mail = Message.objects.order_by("id")[0].payload
    assert f"token {lease.token}" in str(mail)


def test_one_incident_is_mailed_once_whoever_reports_it() -> None:
    for fate in (Incident.Fate.UNKNOWN, Incident.Fate.UNKNOWN, Incident.Fate.RUNNING):
        report(5, fate)
    assert Message.objects.count() == 2


def test_crashed_holder_is_recorded_and_not_mailed() -> None:
    report(5, Incident.Fate.CRASHED)
    assert Incident.objects.count() == 1
    assert not Message.objects.exists()


def test_flood_of_incidents_does_not_flood_the_operators() -> None:
    for token in range(1, MAILS_PER_HOUR * 2 + 3):
        report(token)
    assert Incident.objects.count() == MAILS_PER_HOUR * 2 + 2
    # Two operators; a flood that crosses the full hour is at most two hours' worth.
    assert Message.objects.count() in (MAILS_PER_HOUR * 2, MAILS_PER_HOUR * 4)


def test_message_in_doubt_is_mailed_and_an_alert_in_doubt_is_not() -> None:
    for key in ("invoice:C1:v1", "alert:parked:2026-05-01T00:1:ops@example.org"):
        parked.send(
            None, message_id=1, channel="email", dedupe_key=key, state="in_doubt", reason="silence", using="default"
        )
    mails = Message.objects.order_by("id")
    assert len(mails) == 2  # one per operator
    assert "invoice:C1:v1 is in doubt: silence" in str(mails[0].payload)
