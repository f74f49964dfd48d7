"""One customer with five lines of usage, and what the database says became of it, in plain SQL."""

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from django.db import connection

from billing.models import Customer, Price, UsageEvent

PERIOD = "2026-05"
LINES = 5


def add_customer(number: int, lines: int = LINES) -> Customer:
    """Add a customer with one usage event for each of `lines` lines."""
    customer = Customer.objects.create(
        code=f"C{number}", name=f"Customer {number}", email=f"c{number}@example.org", currency="EUR"
    )
    Price.objects.get_or_create(
        metric="hours", currency="EUR", valid_from=datetime(2026, 1, 1, tzinfo=UTC), defaults={"unit_price": Decimal(2)}
    )
    UsageEvent.objects.bulk_create(
        UsageEvent(
            source="test",
            key=f"{customer.code}-{line}",
            customer=customer,
            metric="hours",
            subject=f"host-{line}",
            quantity=Decimal(3),
            occurred_at=datetime(2026, 5, 2 + line % 20, tzinfo=UTC),
            digest="0" * 64,
        )
        for line in range(lines)
    )
    return customer


@dataclass(frozen=True)
class Found:
    """How many there are of each for one customer."""

    live_invoices: int
    lines: int
    claimed_usage: int
    messages: int
    numbers: list[int]


def found(customer_id: int) -> Found:
    return Found(
        live_invoices=one(
            "SELECT count(*) FROM billing_invoice WHERE customer_id = %s AND status <> 'void'", customer_id
        ),
        lines=one("SELECT count(*) FROM billing_invoiceline WHERE customer_id = %s", customer_id),
        claimed_usage=one(
            "SELECT count(*) FROM billing_usageevent u JOIN billing_invoice i ON i.id = u.invoice_id"
            " WHERE u.customer_id = %s AND i.status <> 'void'",
            customer_id,
        ),
        messages=one(
            "SELECT count(*) FROM outbox_message WHERE dedupe_key LIKE %s", f"invoice:{customer_id}:usage:{PERIOD}:%"
        ),
        numbers=column("SELECT number FROM billing_invoice WHERE customer_id = %s ORDER BY number", customer_id),
    )


def billed_once(lines: int = LINES) -> Found:
    """What there is when one customer was invoiced once, and is the first to have a number."""
    return Found(live_invoices=1, lines=lines, claimed_usage=lines, messages=1, numbers=[1])


def one(sql: str, *parameters: str | int) -> Any:
    return column(sql, *parameters)[0]


def column(sql: str, *parameters: str | int) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return [row[0] for row in cursor.fetchall()]
