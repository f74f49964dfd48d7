"""Messages that are large, and one that cannot be read: neither is more than one drainer can hold."""

import base64
import logging
import os
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from outbox import claims
from outbox.drain import Report
from outbox.models import Message, State

from .smtp_server import MailServer

pytestmark = pytest.mark.django_db(transaction=True)

Publish = Callable[..., Message]
Drain = Callable[..., Report]


def test_a_claim_takes_no_more_large_messages_than_fit_into_memory(
    mail_server: MailServer,
    publish: Publish,
    drain: Drain,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(claims, "MOST_BYTES_PER_CLAIM", 100_000)
    for number, size in enumerate([500, 30_000, 30_000, 30_000, 30_000, 200_000, 500, 500]):
        content = base64.b64encode(os.urandom(size)).decode()
        publish(f"k{number}", attachments=[{"name": "a", "type": "application/pdf", "base64": content}])
    with caplog.at_level(logging.INFO, "outbox"):
        drain()
    assert set(Message.objects.values_list("state", flat=True)) == {State.SENT}
    first = Message.objects.order_by("id")[0].id
    claimed: list[Any] = [r for r in caplog.records if getattr(r, "event", "") == "outbox.claimed"]
    assert [[id - first for id in record.outbox_ids] for record in claimed] == [[0, 1, 2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize(
    "payload",
    ["'[' || repeat('1', 5000) || ']'", "repeat('[', 5000) || repeat(']', 5000)"],
    ids=["number of too many digits", "nested too deep for Python 3.11 and 3.12"],
)
def test_a_payload_that_cannot_be_decoded_stops_no_drainer(
    payload: str, mail_server: MailServer, publish: Publish, drain: Drain
) -> None:
    for key in ("before", "deep", "after"):
        publish(key)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE outbox_message SET payload = ({payload})::jsonb WHERE dedupe_key = 'deep'")
    drain()
    fates = dict(Message.objects.defer("payload").values_list("dedupe_key", "state"))
    assert fates == {"before": State.SENT, "deep": State.DEAD, "after": State.SENT}
    reason = Message.objects.values_list("last_error", flat=True).get(dedupe_key="deep")
    assert re.search("stored (payload|mail) cannot be (decoded|read)", reason)
    assert len(mail_server.received) == 2
