"""Customers, prices and usage for the tests."""

from datetime import UTC, datetime
from decimal import Decimal

from billing.models import Customer, Price, UsageEvent

MAY = datetime(2026, 5, 15, 12, tzinfo=UTC)


def make_customer(code: str = "C1", *, currency: str = "EUR", timezone: str = "UTC") -> Customer:
    mailbox = "".join(filter(str.isalnum, code.lower()))[:40]
    return Customer.objects.create(
        code=code, name=f"{code} Ltd", email=f"{mailbox}@example.com", currency=currency, timezone=timezone
    )


def make_price(
    metric: str = "hours", unit_price: str = "0.10", *, currency: str = "EUR", valid_from: datetime | None = None
) -> Price:
    return Price.objects.create(
        metric=metric,
        currency=currency,
        unit_price=Decimal(unit_price),
        valid_from=valid_from or datetime(2020, 1, 1, tzinfo=UTC),
    )


def make_usage(
    customer: Customer,
    key: str,
    quantity: str = "10",
    *,
    metric: str = "hours",
    subject: str = "",
    at: datetime = MAY,
    amount: str | None = None,
    source: str = "test",
    tax_category: str = "standard",
) -> UsageEvent:
    return UsageEvent.objects.create(
        source=source,
        key=key,
        customer=customer,
        metric=metric,
        subject=subject,
        quantity=Decimal(quantity),
        amount=None if amount is None else Decimal(amount),
        currency="" if amount is None else customer.currency,
        tax_category="" if amount is None else tax_category,
        occurred_at=at,
        digest=key,
    )
