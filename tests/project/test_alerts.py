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
from project.alerts import MAILED_INCIDENTS
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


def mails_to_ops() -> list[str]:
    keys = Message.objects.filter(dedupe_key__endswith=":ops@example.org").order_by("id")
    return [str(message.payload) for message in keys]


def test_first_incidents_of_an_hour_are_mailed_one_by_one_and_then_many_in_one() -> None:
    for token in range(1, 16):
        report(token)
    mails = mails_to_ops()
    assert ["Lease on customer:1 ended under its holder" in mail for mail in mails[:3]] == [True] * 3
    if len(mails) == 4:  # or else the flood crossed the full hour
        assert "10 leases ended under their holders since" in mails[3]
        assert "the next holder found an unreleased record, on worker-3" in mails[3]


def test_outage_that_ends_a_thousand_leases_is_a_handful_of_mails_that_say_how_many() -> None:
    report(1)
    first = Incident.objects.get()
    for token in range(2, 1000):
        first.pk, first.token = None, token
        first.save()
    for token in range(1000, 1010):
        report(token)
    mails = mails_to_ops()
    # Reported by many at once, some marks are passed before anybody looks; across the full hour there are more.
    assert 2 <= len(mails) <= len(MAILED_INCIDENTS)
    assert any("1000 leases ended under their holders since" in mail for mail in mails[1:]) or len(mails) > 2


def test_message_in_doubt_is_mailed_and_an_alert_in_doubt_is_not() -> None:
    for key in ("invoice:C1:v1", "alert:parked:2026-05-01T00:1:ops@example.org"):
        parked.send(
            None, message_id=1, channel="email", dedupe_key=key, state="in_doubt", reason="silence", using="default"
        )
    mails = Message.objects.order_by("id")
    assert len(mails) == 2  # one per operator
    assert "invoice:C1:v1 is in doubt: silence" in str(mails[0].payload)
