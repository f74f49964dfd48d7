"""The whole story of one invoice: rate, tax, issue."""

import logging
from datetime import datetime, timedelta

from django.db import IntegrityError

from billing import issuing, money, rating, runs, tax
from billing.conf import conf
from billing.errors import AmountTooLarge, KeepsChanging, NeedsPerson, NegativeTotal, TryAgain
from billing.models import Customer, Invoice
from billing.outcomes import Outcome
from billing.periods import Period
from billing.slots import Slot
from billing.totals import totals
from billing.wording import counted
from leases import Lease, hold

logger = logging.getLogger("billing.invoicing")

RATINGS = 3

SLOT_TAKEN = ("billing_invoice_one_live_per_slot", "billing_invoice_one_per_version")
OVERLAP = "billing_invoice_no_overlap"


def invoice(customer_id: int, period: Period, *, wait: timedelta = timedelta(0)) -> Outcome:
    """Invoice one customer for one period, once: whoever calls, however often, gets the one live invoice.

    Holds the customer's lease, waiting for it up to `wait`; all writes are made under it. Safe to call again after any
    interruption: what is there is found, what is missing is done.

    The outcome is written to the customer's open items and returned: issued; already invoiced, which is a success;
    skipped, with the reason; parked, when a person has to act first; failed, when it will work later.

    Raises the errors of `leases.hold()`, with nothing written; and what nobody foresaw, which leaves the item open.
    """
    slot = Slot(customer_id, period)
    with hold(slot.resource, ttl=conf.LEASE_TTL, wait=wait) as lease:
        cutoff_at, attempt = runs.begin(lease, slot)
        try:
            return _invoice(lease, slot, cutoff_at)
        except NeedsPerson as error:
            return runs.conclude(lease, slot, Outcome.parked(str(error)))
        except TryAgain as error:
            delay = max(error.retry_after or timedelta(0), runs.retry_delay(attempt))
            return runs.conclude(lease, slot, Outcome.failed(str(error), delay))


def _invoice(lease: Lease, slot: Slot, cutoff_at: datetime) -> Outcome:
    for _ in range(RATINGS):
        if existing := slot.live_invoice(using=lease.using):
            return _already(lease, slot, existing)
        customer = Customer.objects.using(lease.using).get(pk=slot.customer_id)
        rated = rating.rate(customer, slot.period, cutoff_at, using=lease.using)
        logger.info(
            "Rated %s of %s into %s.",
            counted(rated.usage.count, "usage event"),
            slot,
            counted(len(rated.lines), "line"),
            extra={"event": "invoice.rated", "slot": str(slot), "lines": len(rated.lines), "usage": rated.usage.count},
        )
        if not rated.lines:
            if existing := slot.live_invoice(using=lease.using):  # it claimed the usage since we looked
                return _already(lease, slot, existing)
            return runs.conclude(lease, slot, Outcome.skipped("no usage"))
        for line in rated.lines:
            _check_size(f"usage of {line.metric!r}", line.net_minor, rated.currency)
        version = slot.next_version(using=lease.using)
        rates = tax.rates(lease, customer, slot.document(version), rated.taxable)
        total = totals((line.tax_category, rates[line.position], line.net_minor) for line in rated.taxable)
        if total.gross_minor < 0:
            raise NegativeTotal(money.format_minor(total.gross_minor, rated.currency))
        _check_size("the total", total.gross_minor, rated.currency)
        if total.gross_minor == 0:
            return runs.conclude(lease, slot, Outcome.skipped("the usage adds up to zero"))
        try:
            return issuing.issue(lease, slot, version, customer, rated, rates, total)
        except issuing.Changed as changed:
            logger.info("%s", changed)
        except IntegrityError as error:
            return _taken(lease, slot, error)
    raise KeepsChanging(RATINGS)


def _check_size(what: str, amount_minor: int, currency: str) -> None:
    if abs(amount_minor) > money.MOST_MINOR:
        raise AmountTooLarge(what, money.format_minor(amount_minor, currency))


def _already(lease: Lease, slot: Slot, existing: Invoice) -> Outcome:
    logger.info(
        "%s is invoiced by %s.",
        slot,
        existing.reference,
        extra={"event": "invoice.exists", "slot": str(slot), "invoice": existing.pk},
    )
    return runs.conclude(lease, slot, Outcome.already_invoiced(existing.pk))


def _taken(lease: Lease, slot: Slot, error: IntegrityError) -> Outcome:
    """Somebody else was faster although we hold the lease, or the period overlaps another; anything else is raised."""
    constraint = getattr(getattr(error.__cause__, "diag", None), "constraint_name", None)
    if constraint in (*SLOT_TAKEN, OVERLAP) and (existing := slot.live_invoice(using=lease.using)):
        return _already(lease, slot, existing)
    if constraint == OVERLAP:
        slot.check_overlap(using=lease.using)
    raise error
