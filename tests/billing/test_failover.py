"""After a database that forgot: nothing goes on by itself until everything was put right."""

from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection, transaction

import outbox
from billing import runs
from billing.invoicing import invoice
from billing.models import Item, Series
from billing.periods import Period
from leases.errors import DatabaseForgot
from leases.models import DatabaseIdentity
from outbox.models import DatabaseIdentity as OutboxIdentity
from outbox.models import Message
from tests.billing import making

pytestmark = pytest.mark.django_db(transaction=True)
MAY = Period.parse("2026-05")


def test_command_parks_open_items_puts_messages_in_doubt_and_lets_billing_go_on() -> None:
    customer = making.make_customer()
    runs.plan(MAY)
    with transaction.atomic():
        outbox.publish("email", {"to": "a@example.org", "subject": "s", "text": "t"}, dedupe_key="k")
    call_command("drain_outbox", "--once", "--dry-run", stdout=StringIO())
    DatabaseIdentity.objects.update_or_create(
        id=1,
        defaults={
            "system_identifier": "1",
            "timeline": 1,
            "database_oid": 1,
            "table_oid": 1,
            "stored_at": "2026-01-01T00:00Z",
        },
    )
    OutboxIdentity.objects.update_or_create(
        id=1,
        defaults={
            "system_identifier": "1",
            "timeline": 1,
            "database_oid": 1,
            "table_oid": 1,
            "stored_at": "2026-01-01T00:00Z",
        },
    )
    connection.close()
    with pytest.raises(DatabaseForgot):
        invoice(customer.pk, MAY)
    Series.objects.create(name="INV", next_number=43)
    out = StringIO()
    call_command("after_failover", "--dry-run", stdout=out)
    # A customer may have got it from the history that is lost.
    assert "the next number is INV-000043: if one as high was mailed before, raise it first" in out.getvalue()
    assert "would have parked 1 open item" in out.getvalue()
    assert Item.objects.get().outcome == ""
    call_command("after_failover", stdout=StringIO())
    assert Item.objects.get().outcome == Item.Outcome.PARKED
    assert Message.objects.get().state == "in_doubt"
    invoice(customer.pk, MAY)
