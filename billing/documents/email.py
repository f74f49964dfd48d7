"""The emails about an invoice and about a credit note, as plain text."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.db.models import Count, Sum
from django.utils.timezone import localdate

from billing import money
from billing.conf import conf
from billing.errors import Unmailable, WrongSender
from billing.models import CreditNote, Invoice, InvoiceLine
from billing.slots import slot_of
from billing.wording import counted
from outbox.channels.email_rendering import one_address
from outbox.errors import InvalidContent

WIDTH = 60


@dataclass(frozen=True, slots=True)
class MetricTotal:
    """The lines of one metric, summed up."""

    metric: str
    lines: int
    net_minor: int


def summary(invoice: Invoice, *, using: str) -> list[MetricTotal]:
    """Return the invoice's lines per metric: as short for a hundred thousand lines as for ten."""
    rows = (
        InvoiceLine.objects.using(using)
        .filter(invoice=invoice)
        .values_list("metric")
        .annotate(lines=Count("pk"), net=Sum("net_minor"))
        .order_by("metric")
    )
    return [MetricTotal(metric, lines, int(net)) for metric, lines, net in rows]


def invoice_email(invoice: Invoice, metrics: Sequence[MetricTotal]) -> dict[str, Any]:
    """Return the outbox content that tells the customer about an issued invoice."""
    customer, period = invoice.customer_snapshot, slot_of(invoice).period
    total = money.format_minor(invoice.gross_minor, invoice.currency)
    assert invoice.issued_at is not None  # noqa: S101 - numbered and dated together
    rows = [_row(f"{m.metric} ({counted(m.lines, 'line')})", m.net_minor, invoice.currency) for m in metrics]
    taxes = [
        _row(f"Tax {_percent(tax['rate'])} on {money.format_minor(tax['base_minor'], invoice.currency)}",
             tax["tax_minor"], invoice.currency)
        for tax in invoice.taxes
    ]  # fmt: skip
    text = "\n".join(
        [
            f"Dear {customer['name']},",
            "",
            f"this is invoice {invoice.reference} of {localdate(invoice.issued_at)} for the period {period}",
            f"({customer['timezone']}).",
            "",
            *rows,
            _row("Net", invoice.net_minor, invoice.currency),
            *taxes,
            _row("Total", invoice.gross_minor, invoice.currency),
            "",
        ]
    )
    return _addressed(customer["email"], f"Invoice {invoice.reference}: {total}", text)


def credit_email(note: CreditNote, invoice: Invoice) -> dict[str, Any]:
    """Return the outbox content that tells the customer, at today's address, that an invoice is taken back.

    The invoice's mail may have gone to that one too, when it was sent again.
    """
    customer = invoice.customer_snapshot
    total = money.format_minor(note.gross_minor, invoice.currency)
    text = "\n".join(
        [
            f"Dear {customer['name']},",
            "",
            f"credit note {note.reference} of {localdate(note.issued_at)} takes back the whole of invoice "
            f"{invoice.reference}: {total}.",
            f"Reason: {note.reason}",
            "",
        ]
    )
    return _addressed(invoice.customer.email, f"Credit note {note.reference}: {total}", text)


def check_sender() -> None:
    """Return if invoices can be sent from the configured address; raise WrongSender if nobody's can."""
    setting = "BILLING_EMAIL_FROM" if conf.EMAIL_FROM else "DEFAULT_FROM_EMAIL"
    try:
        one_address("it", conf.EMAIL_FROM or settings.DEFAULT_FROM_EMAIL)
    except ValueError as error:
        raise WrongSender(setting, str(error)) from error


def unmailable(address: str, error: InvalidContent) -> Unmailable:
    """Return why no mail can be made to `address`; raise WrongSender if that is because of who sends."""
    check_sender()
    return Unmailable(address, str(error))


def _addressed(address: str, subject: str, text: str) -> dict[str, Any]:
    content = {"to": address, "subject": subject, "text": text}
    return {**content, "from": conf.EMAIL_FROM} if conf.EMAIL_FROM else content


def _row(label: str, amount_minor: int, currency: str) -> str:
    amount = money.format_minor(amount_minor, currency)
    return f"  {label:<{WIDTH - len(amount)}} {amount}"


def _percent(rate: str) -> str:
    percent = (Decimal(rate) * 100).normalize()
    return f"{percent:f} %"
