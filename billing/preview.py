"""What a run would invoice, without writing anything."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from django.db import connections, router

from billing import rating, runs
from billing.errors import NeedsPerson
from billing.models import Customer, Run
from billing.periods import Period
from billing.slots import Slot


@dataclass(frozen=True, slots=True)
class Preview:
    """One customer: `net_minor` before tax if there would be an invoice, else `reason` says why there would be none."""

    customer: str
    currency: str
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
        existing = Slot(customer_id, period).live_invoice(using=using)
        if existing:
            yield Preview(customer.code, customer.currency, reason=f"already invoiced by {existing.reference}")
            continue
        try:
            rated = rating.rate(customer, period, cutoff_at, using=using)
        except NeedsPerson as error:
            yield Preview(customer.code, customer.currency, reason=str(error))
            continue
        reason = "" if rated.net_minor else "the usage adds up to zero" if rated.lines else "no usage"
        yield Preview(customer.code, customer.currency, len(rated.lines), rated.net_minor, reason)
