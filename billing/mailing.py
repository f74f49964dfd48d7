"""The mails about an invoice: the one published with it, and copies that a person sends deliberately."""

import logging
import re
from collections.abc import Iterable
from email import message_from_string
from email.policy import default
from typing import Any

from django.db import router, transaction
from django.dispatch import receiver

import outbox
from billing.documents.email import invoice_email, summary, unmailable
from billing.errors import CopyExists, InvoiceIsVoid, MailOnItsWay, TooManyCopies
from billing.models import Invoice
from billing.periods import InvalidPeriod, Period
from billing.slots import as_dates, slot_of
from outbox.errors import DedupeConflict, InvalidContent
from outbox.models import Message, State
from outbox.signals import resending

logger = logging.getLogger("billing.mailing")

MOST_COPIES = 9

_KEY = re.compile(r"invoice:(\d+):(\w+):([^:]+):v(\d+)(?::copy\d+)?", re.ASCII)


def keys(invoice: Invoice) -> list[str]:
    """Return the dedupe keys of all mails there can be about the invoice, that of the mail issued with it first."""
    first = slot_of(invoice).document(invoice.version)
    return [first, *(f"{first}:copy{number}" for number in range(2, MOST_COPIES + 2))]


def messages_of(invoices: Iterable[Invoice], *, using: str | None = None) -> dict[int, list[Message]]:
    """Return what was published about each of the invoices, oldest first, by the invoice's id; in one query."""
    owners = {key: invoice.pk for invoice in invoices for key in keys(invoice)}
    found: dict[int, list[Message]] = {pk: [] for pk in owners.values()}
    messages = (
        Message.objects.using(using).filter(dedupe_key__in=owners).defer("payload", "history", "refused").order_by("pk")
    )
    for message in messages:
        found[owners[message.dedupe_key]].append(message)
    return found


def read(message: Message) -> dict[str, str] | None:
    """Return to whom it goes, its subject and its text; None once its payload is pruned."""
    if message.payload is None:
        return None
    mail = message_from_string(message.payload["raw"], policy=default)
    body = mail.get_body(("plain",))
    text = body.get_content() if body else ""
    return {"to": ", ".join(message.payload["rcpt_tos"]), "subject": str(mail["Subject"]), "text": text}


def next_copy(invoice: Invoice) -> int:
    """Return the number that the next mail about the invoice has: 2 for the first that is sent again."""
    return len(messages_of([invoice])[invoice.pk]) + 1


def send_again(invoice_id: int, *, to: str, copy: int) -> Message:
    """Publish the invoice's mail once more, to the address `to`, and return the message.

    `copy` is what `next_copy()` said when a person decided: however often it is asked for, one mail goes out under
    that number. The earlier mails must have ended: sent, in doubt, dead or cancelled.

    Raises Invoice.DoesNotExist, InvoiceIsVoid, MailOnItsWay, CopyExists, TooManyCopies, Unmailable and WrongSender.
    """
    using = router.db_for_write(Message)
    with transaction.atomic(using):
        # Whoever voids it meanwhile waits, and then cancels this copy too.
        invoice = Invoice.objects.using(using).select_for_update().get(pk=invoice_id)
        if invoice.status == Invoice.Status.VOID:
            raise InvoiceIsVoid(invoice.reference)
        if copy > MOST_COPIES + 1:
            raise TooManyCopies(MOST_COPIES)
        for earlier in messages_of([invoice], using=using)[invoice.pk][: copy - 1]:
            if earlier.state in (State.PENDING, State.CLAIMED, State.SENDING):
                raise MailOnItsWay(earlier.get_state_display())
        content = invoice_email(invoice, summary(invoice, using=using)) | {"to": to}
        try:
            message = outbox.publish("email", content, dedupe_key=keys(invoice)[copy - 1], using=using)
        except InvalidContent as error:
            raise unmailable(to, error) from error
        except DedupeConflict as error:
            raise CopyExists(copy) from error
    logger.warning(
        "The mail about %s is sent again.",
        invoice.reference,
        extra={"event": "invoice.sent_again", "invoice": invoice.pk, "reference": invoice.reference, "copy": copy},
    )
    return message


def cancel_unsent(invoice: Invoice, *, using: str) -> bool:
    """Take back, in the caller's transaction, the mails about the invoice; True if no customer will ever see one."""
    messages = messages_of([invoice], using=using)[invoice.pk]
    cancelled = [outbox.cancel(message.dedupe_key, using=using) for message in messages]
    return bool(cancelled) and all(cancelled)


@receiver(resending)
def refuse_if_void(sender: type[Message], *, dedupe_key: str, using: str, **more: Any) -> str | None:
    """Refuse to have a mail about a void invoice sent after all; whoever voids it meanwhile waits, and then cancels."""
    match = _KEY.fullmatch(dedupe_key)
    if match is None:
        return None
    customer_id, kind, period, version = match.groups()
    try:
        filling = {"customer_id": int(customer_id), "kind": kind, "period": as_dates(Period.parse(period))}
    except InvalidPeriod:
        return None
    invoice = Invoice.objects.using(using).select_for_update().filter(**filling, version=int(version)).first()
    if invoice is None or invoice.status != Invoice.Status.VOID:
        return None
    return str(InvoiceIsVoid(invoice.reference))
