"""Taking an invoice back: it becomes void, and a credit note over the whole of it says so."""

import logging
from datetime import timedelta

from django.db.models.functions import Now

import outbox
from billing import mailing, numbering
from billing.conf import conf
from billing.documents import email
from billing.models import CreditNote, Invoice, UsageEvent
from billing.slots import slot_of
from billing.transactions import under
from leases import Lease, hold
from outbox.errors import InvalidContent

logger = logging.getLogger("billing.crediting")


def void(invoice_id: int, reason: str, *, wait: timedelta = timedelta(seconds=10)) -> CreditNote:
    """Void an issued invoice and return its credit note; a void one returns the credit note it has.

    The customer reads the reason, if there is a mail about the credit note.

    In one transaction under the customer's lease: the unsent email is cancelled, or one about the credit note is
    published; the usage is released, so that the slot can be billed again, as the next version.

    Raises Invoice.DoesNotExist, Unmailable, WrongSender, and the errors of `leases.hold()`.
    """
    customer_id = Invoice.objects.values_list("customer_id", flat=True).get(pk=invoice_id)
    with hold(f"customer:{customer_id}", ttl=conf.LEASE_TTL, wait=wait) as lease:
        note, made = under(lease, lambda: _void(lease, invoice_id, reason))
    if made:
        logger.info(
            "Voided invoice %d by %s.", invoice_id, note, extra={"event": "invoice.voided", "invoice": invoice_id}
        )
    return note


def _void(lease: Lease, invoice_id: int, reason: str) -> tuple[CreditNote, bool]:
    using = lease.using
    invoice = Invoice.objects.using(using).select_related("customer").get(pk=invoice_id)
    if invoice.status == Invoice.Status.VOID:
        return CreditNote.objects.using(using).get(invoice=invoice), False
    slot = slot_of(invoice)
    Invoice.objects.using(using).filter(pk=invoice.pk).update(
        status=Invoice.Status.VOID, voided_at=Now(), void_reason=reason
    )
    # After the row is locked, so that no copy of the mail is published behind our back.
    unsent = mailing.cancel_unsent(invoice, using=using)
    UsageEvent.objects.using(using).filter(invoice=invoice).update(invoice=None)
    number = numbering.take_number(conf.CREDIT_SERIES, using=using)
    note = CreditNote(
        invoice=invoice,
        customer_id=invoice.customer_id,
        series=conf.CREDIT_SERIES,
        number=number,
        issued_at=numbering.dated(CreditNote, conf.CREDIT_SERIES, number),
        net_minor=invoice.net_minor,
        tax_minor=invoice.tax_minor,
        gross_minor=invoice.gross_minor,
        reason=reason,
    )
    note.save(using=using, force_insert=True)
    note.refresh_from_db(using=using, fields=["issued_at"])
    if not unsent:
        key = f"credit:{slot}:v{invoice.version}"
        content = email.credit_email(note, invoice)
        try:
            outbox.publish("email", content, dedupe_key=key, using=using)
        except InvalidContent as error:
            raise email.unmailable(content["to"], error) from error
    return note, True
