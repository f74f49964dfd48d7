"""What would be invoiced, without writing anything."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from django.db import connections, router
from django.utils import timezone

from billing import issuing, rating, runs
from billing.documents import email
from billing.errors import NeedsPerson
from billing.models import Customer, Invoice, Item, Run
from billing.periods import Period
from billing.rating import RatedLine
from billing.slots import Slot, as_period
from billing.totals import Totals


@dataclass(frozen=True, slots=True)
class Preview:
    """One customer, and the outcome that the item would have now.

    `net_minor` is before tax if there would be an invoice, else `reason` says why there would be none.
    """

    customer: str
    currency: str
    outcome: Item.Outcome
    lines: int = 0
    net_minor: int = 0
    reason: str = ""


def preview(period: Period, *, codes: Collection[str] = ()) -> Iterator[Preview]:
    """Yield what each customer of a run would be invoiced now, before tax; raises `runs.UnknownCustomers`."""
    using = router.db_for_write(Run)
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (cutoff_at,) = cursor.fetchone()
    for customer_id in runs.planned_customers(period, codes=codes):
        customer = Customer.objects.using(using).get(pk=customer_id)
        slot = Slot(customer_id, period)
        existing = slot.live_invoice(using=using)
        if existing:
            reason = f"already invoiced by {existing.reference}"
            yield Preview(customer.code, customer.currency, Item.Outcome.ALREADY_INVOICED, reason=reason)
            continue
        try:
            rated = rating.rate(customer, period, cutoff_at, using=using)
            if rated.lines:
                slot.check_overlap(using=using)
        except NeedsPerson as error:
            yield Preview(customer.code, customer.currency, Item.Outcome.PARKED, reason=str(error))
            continue
        reason = "" if rated.net_minor else "the usage adds up to zero" if rated.lines else "no usage"
        outcome = Item.Outcome.SKIPPED if reason else Item.Outcome.ISSUED
        yield Preview(customer.code, customer.currency, outcome, len(rated.lines), rated.net_minor, reason)


@dataclass(frozen=True, slots=True)
class Draft:
    """What an item would become: an invoice without a number and before tax, its lines, and the mail about it."""

    invoice: Invoice
    lines: tuple[RatedLine, ...]
    mail: dict[str, Any]


def draft(item: Item) -> Draft:
    """Return what would be issued for the item if a worker took it now; raises NeedsPerson where a person has to act.

    Before tax, because asking the tax service leaves a document there.
    """
    using = router.db_for_write(Run)
    slot = Slot(item.customer_id, as_period(item.run.period))
    rated = rating.rate(item.customer, slot.period, item.run.cutoff_at, using=using)
    slot.check_overlap(using=using)
    before_tax = Totals(net_minor=rated.net_minor, tax_minor=0, subtotals=())
    invoice = issuing.draft(slot, slot.next_version(using=using), item.customer, rated, before_tax)
    invoice.issued_at = timezone.now()
    metrics: dict[str, list[int]] = {}
    for line in rated.lines:
        metrics.setdefault(line.metric, []).append(line.net_minor)
    totals = [email.MetricTotal(metric, len(nets), sum(nets)) for metric, nets in sorted(metrics.items())]
    return Draft(invoice, rated.lines, email.invoice_email(invoice, totals))
