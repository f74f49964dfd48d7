"""The mails about an invoice: the one published with it, and copies that a person sends deliberately."""

from collections.abc import Iterable

from billing.models import Invoice
from billing.slots import slot_of
from outbox.models import Message

MOST_COPIES = 9


def keys(invoice: Invoice) -> list[str]:
    """Return the dedupe keys of all mails there can be about the invoice, that of the mail issued with it first."""
    first = slot_of(invoice).document(invoice.version)
    return [first, *(f"{first}:copy{number}" for number in range(2, MOST_COPIES + 2))]


def messages_of(invoices: Iterable[Invoice]) -> dict[int, list[Message]]:
    """Return what was published about each of the invoices, oldest first, by the invoice's id; in one query."""
    owners = {key: invoice.pk for invoice in invoices for key in keys(invoice)}
    found: dict[int, list[Message]] = {pk: [] for pk in owners.values()}
    messages = Message.objects.filter(dedupe_key__in=owners).defer("payload", "history", "refused").order_by("pk")
    for message in messages:
        found[owners[message.dedupe_key]].append(message)
    return found
