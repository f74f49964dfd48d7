import math
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone

from billing.errors import NegativeTotal, OtherCurrency, UnpricedUsage
from billing.models import Customer, UsageEvent
from billing.periods import Period
from billing.rating import Rating, rate
from tests.billing.making import make_customer, make_price, make_usage

MAY = Period.parse("2026-05")

pytestmark = pytest.mark.django_db


def rated(customer: Customer, cutoff_at: datetime | None = None) -> Rating:
    return rate(customer, MAY, cutoff_at or timezone.now() + timedelta(minutes=1))


def shown(rating: Rating) -> list[tuple[str, str, Decimal, Decimal | None, int, int]]:
    return [(r.metric, r.subject, r.quantity, r.unit_price, r.net_minor, r.usage_count) for r in rating.lines]


def test_usage_is_added_up_per_metric_and_subject() -> None:
    customer = make_customer()
    make_price("hours", "0.10")
    make_price("bytes", "2")
    for key, metric, subject in [("1", "hours", "b"), ("2", "hours", "a"), ("3", "bytes", "a"), ("4", "hours", "b")]:
        make_usage(customer, key, "1.5", metric=metric, subject=subject)
    assert shown(rated(customer)) == [
        ("bytes", "a", Decimal("1.5"), Decimal(2), 300, 1),
        ("hours", "a", Decimal("1.5"), Decimal("0.10"), 15, 1),
        ("hours", "b", Decimal(3), Decimal("0.10"), 30, 2),
    ]
    assert [line.position for line in rated(customer).lines] == [1, 2, 3]


def test_line_is_rounded_once_after_adding_up() -> None:
    # billing 83: 2 requests at 0.000005 each are 0.00001; rounded singly they would come to nothing
    customer = make_customer(currency="USD")
    make_price("requests", "0.000005", currency="USD")
    UsageEvent.objects.bulk_create(
        UsageEvent(source="t", key=str(n), customer=customer, metric="requests", quantity=2, digest="-",
                   occurred_at=datetime(2026, 5, 2, tzinfo=UTC))
        for n in range(2_000)
    )  # fmt: skip
    (line,) = rated(customer).lines
    assert (line.quantity, line.net_minor, line.usage_count) == (Decimal(4_000), 2, 2_000)


def test_each_event_has_the_price_of_its_moment() -> None:
    # billing 101
    customer = make_customer()
    make_price("hours", "0.10")
    make_price("hours", "0.20", valid_from=datetime(2026, 5, 15, tzinfo=UTC))
    make_price("hours", "0.90", valid_from=datetime(2026, 6, 1, tzinfo=UTC))
    make_usage(customer, "before", "10", at=datetime(2026, 5, 14, 23, 59, 59, 999999, tzinfo=UTC))
    make_usage(customer, "after", "10", at=datetime(2026, 5, 15, tzinfo=UTC))
    assert shown(rated(customer)) == [
        ("hours", "", Decimal(10), Decimal("0.10"), 100, 1),
        ("hours", "", Decimal(10), Decimal("0.20"), 200, 1),
    ]


def test_price_of_another_currency_is_not_taken() -> None:
    customer = make_customer(currency="EUR")
    make_price("hours", "0.10", currency="USD")
    make_usage(customer, "1")
    with pytest.raises(UnpricedUsage) as raised:
        rated(customer)
    assert (raised.value.metric, raised.value.currency, raised.value.count) == ("hours", "EUR", 1)


def test_usage_before_the_first_price_needs_a_person() -> None:
    customer = make_customer()
    make_price("hours", valid_from=datetime(2026, 5, 10, tzinfo=UTC))
    make_usage(customer, "1", at=datetime(2026, 5, 9, tzinfo=UTC))
    with pytest.raises(UnpricedUsage, match="1 usage event of 'hours' without a price in EUR; import the price"):
        rated(customer)


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/New_York", "Asia/Kathmandu"])
def test_period_is_the_customers_own_month(zone: str) -> None:
    # billing 2, 88: 23:59:59.999999 and 00:00:00 of the customer's clock
    customer = make_customer(timezone=zone)
    make_price("hours", "1")
    local = ZoneInfo(zone)
    for key, at in {
        "april": datetime(2026, 4, 30, 23, 59, 59, 999999, tzinfo=local),
        "first": datetime(2026, 5, 1, tzinfo=local),
        "last": datetime(2026, 5, 31, 23, 59, 59, 999999, tzinfo=local),
        "june": datetime(2026, 6, 1, tzinfo=local),
    }.items():
        make_usage(customer, key, "1", subject=key, at=at)
    assert [line.subject for line in rated(customer).lines] == ["first", "last"]


def test_usage_received_after_the_cutoff_is_left() -> None:
    # billing 103: one cutoff, stored, for rating and claiming
    customer = make_customer()
    make_price("hours", "1")
    early = make_usage(customer, "early", "1")
    cutoff_at = UsageEvent.objects.values_list("received_at", flat=True).get(pk=early.pk)
    late = make_usage(customer, "late", "1")
    UsageEvent.objects.filter(pk=late.pk).update(received_at=cutoff_at + timedelta(microseconds=1))
    assert rated(customer, cutoff_at).usage.count == 1


def test_usage_that_arrived_priced_keeps_its_amount() -> None:
    customer = make_customer(currency="USD")
    make_price("hours", "5", currency="USD")
    make_usage(customer, "1", "3", amount="0.004")
    make_usage(customer, "2", "4", amount="0.0014")
    make_usage(customer, "3", "1")
    assert shown(rated(customer)) == [
        ("hours", "", Decimal(7), None, 1, 2),
        ("hours", "", Decimal(1), Decimal(5), 500, 1),
    ]


def test_amount_in_another_currency_needs_a_person() -> None:
    customer = make_customer(currency="USD")
    make_usage(customer, "1", amount="1")
    Customer.objects.update(currency="EUR")
    customer.refresh_from_db()
    with pytest.raises(OtherCurrency, match="1 usage event with amounts in USD, the customer is invoiced in EUR"):
        rated(customer)


def test_credits_are_set_off_but_never_below_zero() -> None:
    # billing 95
    customer = make_customer()
    make_usage(customer, "charge", amount="10.00")
    credit = make_usage(customer, "credit", amount="-4.00", subject="goodwill")
    assert rated(customer).net_minor == 600
    UsageEvent.objects.filter(pk=credit.pk).update(amount=Decimal("-10.01"))
    with pytest.raises(NegativeTotal, match=r"the usage adds up to EUR -0\.01"):
        rated(customer)


def test_sums_beyond_28_digits_stay_exact() -> None:
    customer = make_customer()
    for key in ("1", "2"):
        make_usage(customer, key, "999999999999999999.000000000000001", amount="444444444444444.123456789012345")
    (line,) = rated(customer).lines
    assert line.quantity == Decimal("1999999999999999998.000000000000002")
    assert line.net_minor == 88888888888888825


@pytest.mark.parametrize("seed", range(12))
def test_rating_agrees_with_exact_fractions(seed: int) -> None:
    """The oracle adds up event by event, in fractions, and shares no code with the SQL."""
    chosen = random.Random(seed)
    currency, exponent = chosen.choice([("EUR", 2), ("JPY", 0), ("KWD", 3), ("CLF", 4)])
    customer = make_customer(currency=currency)
    moments = [datetime(2026, 4, 1, tzinfo=UTC) + timedelta(hours=chosen.randrange(24 * 80)) for _ in range(4)]
    versions: dict[str, list[tuple[datetime, Fraction]]] = {}
    for metric in ("hours", "bytes"):
        for at in sorted({datetime(2020, 1, 1, tzinfo=UTC), *moments}):
            price = Decimal(chosen.randrange(10 ** chosen.randrange(1, 13))).scaleb(-12)
            make_price(metric, str(price), currency=currency, valid_from=at)
            versions.setdefault(metric, []).append((at, Fraction(price)))
    exact: dict[tuple[str, str, Fraction | None, datetime | None], Fraction] = {}
    for n in range(120):
        at = datetime(2026, 4, 20, tzinfo=UTC) + timedelta(minutes=chosen.randrange(60 * 24 * 50))
        metric, subject = chosen.choice(("hours", "bytes")), chosen.choice("ab")
        quantity = Decimal(chosen.randrange(-(10**6), 10 ** chosen.randrange(7, 18))).scaleb(-chosen.randrange(16))
        amount = quantity if chosen.random() < 0.2 else None
        shown_amount = None if amount is None else str(amount)
        make_usage(customer, str(n), str(quantity), metric=metric, subject=subject, at=at, amount=shown_amount)
        if not datetime(2026, 5, 1, tzinfo=UTC) <= at < datetime(2026, 6, 1, tzinfo=UTC):
            continue
        since, price_then = [version for version in versions[metric] if version[0] <= at][-1]
        key = (metric, subject, None, None) if amount is not None else (metric, subject, price_then, since)
        cost = Fraction(quantity) if amount is not None else Fraction(quantity) * price_then
        exact[key] = exact.get(key, Fraction(0)) + cost
    expected = sorted((metric, subject, half_up(cost * 10**exponent)) for (metric, subject, *_), cost in exact.items())
    assert sorted((line.metric, line.subject, line.net_minor) for line in rated(customer).lines) == expected


def half_up(value: Fraction) -> int:
    return (-1 if value < 0 else 1) * math.floor(abs(value) + Fraction(1, 2))
