"""Rating: the unclaimed usage of a period, added up per line and priced. Set-based; writes nothing."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from zoneinfo import ZoneInfoNotFoundError

from django.db import connections

from billing import money
from billing.errors import InvalidCustomer, NegativeTotal, OtherCurrency, UnpricedUsage
from billing.models import Customer, Invoice
from billing.periods import Period

#: What may be claimed, for rating and for claiming alike; parameters as `Rating.bounds`.
UNCLAIMED = """
customer_id = %(customer_id)s AND occurred_at >= %(starts_at)s AND occurred_at < %(ends_at)s
AND received_at <= %(cutoff_at)s AND invoice_id IS NULL
"""

# Added up before it is rounded: a million lines of 0.0000008 are 0.80, not a million times nothing.
_RATE = f"""
WITH price AS (
  SELECT id, metric, unit_price, tax_category, valid_from,
         lead(valid_from, 1, 'infinity') OVER (PARTITION BY metric ORDER BY valid_from) AS valid_to
    FROM billing_price WHERE currency = %(currency)s),
usage AS (
  SELECT id, metric, subject, quantity, amount, currency, tax_category, occurred_at
    FROM billing_usageevent WHERE {UNCLAIMED})
SELECT u.metric, u.subject, p.id, p.unit_price, coalesce(p.tax_category, u.tax_category), u.currency,
       sum(u.quantity), sum(u.amount), count(*), sum(u.id)
  FROM usage u
  LEFT JOIN price p ON u.amount IS NULL AND p.metric = u.metric
                   AND u.occurred_at >= p.valid_from AND u.occurred_at < p.valid_to
 GROUP BY u.metric, u.subject, p.id, p.unit_price, p.tax_category, u.tax_category, u.currency, p.valid_from
 ORDER BY u.metric COLLATE "C", u.subject COLLATE "C", p.valid_from NULLS FIRST, u.tax_category COLLATE "C"
"""  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True)
class RatedLine:
    """One line to be: `unit_price` and `price_id` are None where the usage arrived with its amount."""

    position: int
    metric: str
    subject: str
    quantity: Decimal
    price_id: int | None
    unit_price: Decimal | None
    tax_category: str
    net_minor: int
    usage_count: int


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Enough of a set of usage events to notice that another set is claimed than was rated."""

    count: int
    id_sum: Decimal
    quantity: Decimal
    amount: Decimal


@dataclass(frozen=True, slots=True)
class Rating:
    """What the usage of one customer and period comes to, before tax."""

    customer_id: int
    currency: str
    starts_at: datetime
    ends_at: datetime
    cutoff_at: datetime
    lines: tuple[RatedLine, ...]
    usage: Fingerprint

    @property
    def bounds(self) -> dict[str, int | datetime]:
        """The parameters of `UNCLAIMED`."""
        return {
            "customer_id": self.customer_id,
            "starts_at": self.starts_at,
            "ends_at": self.ends_at,
            "cutoff_at": self.cutoff_at,
        }

    @property
    def taxable(self) -> list[RatedLine]:
        """The lines that come to anything; what comes to nothing has no tax, and the tax service is not asked."""
        return [line for line in self.lines if line.net_minor]

    @property
    def net_minor(self) -> int:
        return sum(line.net_minor for line in self.lines)


def rate(customer: Customer, period: Period, cutoff_at: datetime, *, using: str = "default") -> Rating:
    """Rate the customer's unclaimed usage of `period` that was received up to `cutoff_at`.

    Where the customer's zone has moved west since the invoice of the period before, that one ended earlier than this
    period starts: what lies between belongs to this one, so that no hour is on no invoice.

    One line per metric, subject and price, each event priced by the version valid when it occurred; usage that
    arrived with an amount keeps it. Each line is added up exactly and rounded once, half up.

    Raises UnpricedUsage, OtherCurrency, NegativeTotal, or InvalidCustomer.
    """
    starts_at, ends_at = _bounds(customer, period)
    before = Invoice.objects.using(using).filter(customer=customer, period__endswith=period.first)
    if ended := before.exclude(status=Invoice.Status.VOID).values_list("ends_at", flat=True).first():
        starts_at = min(starts_at, ended)
    bounds: dict[str, int | datetime] = {
        "customer_id": customer.pk,
        "starts_at": starts_at,
        "ends_at": ends_at,
        "cutoff_at": cutoff_at,
    }
    with connections[using].cursor() as cursor:
        cursor.execute(_RATE, {**bounds, "currency": customer.currency})
        rows = cursor.fetchall()
    lines = []
    count, id_sum, quantity_sum, amount_sum = 0, Decimal(0), Decimal(0), Decimal(0)
    for position, row in enumerate(rows, 1):
        metric, subject, price_id, unit_price, category, currency, quantity, amount, events, ids = row
        if amount is not None:
            if currency != customer.currency:
                raise OtherCurrency(currency, customer.currency, events)
            net_minor = money.to_minor(amount, customer.currency)
        elif unit_price is None:
            raise UnpricedUsage(metric, customer.currency, events)
        else:
            net_minor = money.line_net_minor(quantity, unit_price, customer.currency)
        lines.append(RatedLine(position, metric, subject, quantity, price_id, unit_price, category, net_minor, events))
        count += events
        id_sum += ids
        quantity_sum = money.exact_sum(quantity_sum, quantity)
        amount_sum = money.exact_sum(amount_sum, amount or Decimal(0))
    rating = Rating(
        customer_id=customer.pk,
        currency=customer.currency,
        starts_at=starts_at,
        ends_at=ends_at,
        cutoff_at=cutoff_at,
        lines=tuple(lines),
        usage=Fingerprint(count, id_sum, quantity_sum, amount_sum),
    )
    if rating.net_minor < 0:
        raise NegativeTotal(money.format_minor(rating.net_minor, customer.currency))
    return rating


def _bounds(customer: Customer, period: Period) -> tuple[datetime, datetime]:
    try:
        money.exponent(customer.currency)
        return period.bounds(customer.timezone)
    except money.UnknownCurrency as error:
        raise InvalidCustomer(str(error)) from error
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: 'America' is a folder
        raise InvalidCustomer(f"{customer.timezone!r} is not an IANA time zone") from error
