"""Issuing: one short transaction in which an invoice comes to exist, whole or not at all."""

import logging
from collections.abc import Mapping
from dataclasses import asdict
from decimal import Decimal

from django.db import connections

import outbox
from billing import numbering, runs
from billing.conf import conf
from billing.documents import email
from billing.errors import BillingError
from billing.models import Customer, Invoice, InvoiceLine
from billing.money import exponent
from billing.outcomes import Outcome
from billing.rating import UNCLAIMED, Fingerprint, RatedLine, Rating
from billing.slots import Slot
from billing.totals import Totals
from billing.transactions import under
from billing.wording import counted
from leases import Lease
from outbox.errors import InvalidContent

logger = logging.getLogger("billing.issuing")

BATCH_LINES = 2000
SNAPSHOT = ("code", "name", "email", "country", "timezone")

_CLAIM = f"""
WITH claimed AS (
  UPDATE billing_usageevent SET invoice_id = %(invoice_id)s WHERE {UNCLAIMED} RETURNING id, quantity, amount)
SELECT count(*), coalesce(sum(id), 0), coalesce(sum(quantity), 0), coalesce(sum(amount), 0) FROM claimed
"""  # noqa: S608 - constants only


class Changed(BillingError):
    """What the invoice was made of is not what is there now; nothing was issued, rate again."""


class CustomerChanged(Changed):
    """Somebody corrected the customer since; the invoice goes to the corrected one."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        super().__init__(f"the customer of {slot} was changed after it was rated; rate it again")


class UsageChanged(Changed):
    """Other usage would be claimed than was rated."""

    def __init__(self, slot: Slot, rated: Fingerprint, found: Fingerprint) -> None:
        self.slot = slot
        self.rated = rated
        self.found = found
        super().__init__(
            f"{slot} was rated from {counted(rated.count, 'usage event')} and now has {found.count}; rate it again"
        )


def issue(
    lease: Lease,
    slot: Slot,
    version: int,
    customer: Customer,
    rating: Rating,
    rates: Mapping[int, Decimal],
    total: Totals,
) -> Outcome:
    """Issue the rated and taxed invoice, and return the outcome `issued`.

    In one transaction under the lease: the invoice, its lines, the claim of the usage it was rated from, the outcome of
    the item, and then, at the very end, the number and the email. Raises CustomerChanged, UsageChanged, Unmailable,
    WrongSender, and django.db.IntegrityError with the name of the constraint if the slot is taken.
    """
    invoice = under(lease, lambda: _issue(lease, slot, version, customer, rating, rates, total))
    outcome = Outcome.issued(invoice.pk)
    logger.info(
        "Issued %s for %s.",
        invoice.reference,
        slot,
        extra={"event": "invoice.issued", "slot": str(slot), "invoice": invoice.pk, "reference": invoice.reference},
    )
    runs.log(slot, outcome)
    return outcome


def _issue(
    lease: Lease,
    slot: Slot,
    version: int,
    customer: Customer,
    rating: Rating,
    rates: Mapping[int, Decimal],
    total: Totals,
) -> Invoice:
    using = lease.using
    _check_customer(slot, customer, using)
    invoice = draft(slot, version, customer, rating, total)
    invoice.save(using=using, force_insert=True)
    lines = [_line(invoice, line, rates.get(line.position)) for line in rating.lines]
    InvoiceLine.objects.using(using).bulk_create(lines, batch_size=BATCH_LINES)
    _claim(invoice, slot, rating, using)
    runs.record_issued(slot, invoice, using=using)
    metrics = email.summary(invoice, using=using)
    # From here on everybody else who issues waits for this transaction.
    invoice.number = numbering.take_number(invoice.series, using=using)
    issued_at = numbering.dated(Invoice, invoice.series, invoice.number)
    Invoice.objects.using(using).filter(pk=invoice.pk).update(number=invoice.number, issued_at=issued_at)
    invoice.refresh_from_db(using=using, fields=["issued_at"])
    try:
        outbox.publish("email", email.invoice_email(invoice, metrics), dedupe_key=slot.document(version), using=using)
    except InvalidContent as error:
        raise email.unmailable(customer.email, error) from error
    logger.info(
        "Committing %s for %s.",
        invoice.reference,
        slot,
        extra={"event": "invoice.committing", "slot": str(slot), "invoice": invoice.pk},
    )
    return invoice


def draft(slot: Slot, version: int, customer: Customer, rating: Rating, total: Totals) -> Invoice:
    """Return the invoice as it would be issued, without number and date; nothing is written."""
    return Invoice(
        customer=customer,
        kind=slot.kind,
        period=slot.dates,
        version=version,
        series=conf.SERIES,
        starts_at=rating.starts_at,
        ends_at=rating.ends_at,
        cutoff_at=rating.cutoff_at,
        currency=rating.currency,
        exponent=exponent(rating.currency),
        net_minor=total.net_minor,
        tax_minor=total.tax_minor,
        gross_minor=total.gross_minor,
        taxes=[asdict(subtotal) for subtotal in total.subtotals],
        customer_snapshot={name: getattr(customer, name) for name in SNAPSHOT},
        usage_count=rating.usage.count,
    )


def _line(invoice: Invoice, line: RatedLine, rate: Decimal | None) -> InvoiceLine:
    return InvoiceLine(
        invoice=invoice,
        customer_id=invoice.customer_id,
        position=line.position,
        metric=line.metric,
        subject=line.subject,
        quantity=line.quantity,
        price_id=line.price_id,
        unit_price=line.unit_price,
        net_minor=line.net_minor,
        tax_category=line.tax_category,
        tax_rate=rate,
        usage_count=line.usage_count,
    )


def _check_customer(slot: Slot, customer: Customer, using: str) -> None:
    # Tax may have taken minutes, in which a person corrected the address.
    now = Customer.objects.using(using).get(pk=customer.pk)
    if any(getattr(now, name) != getattr(customer, name) for name in (*SNAPSHOT, "currency")):
        raise CustomerChanged(slot)


def _claim(invoice: Invoice, slot: Slot, rating: Rating, using: str) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute(_CLAIM, {"invoice_id": invoice.pk, **rating.bounds})
        claimed = Fingerprint(*cursor.fetchone())
    if claimed != rating.usage:
        raise UsageChanged(slot, rating.usage, claimed)
