"""What came of it: counted in the database and, independently, in what the mail server took over."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from django.db.models import Count, Q

from billing.models import Invoice, Item, Run
from billing.periods import Period
from billing.slots import as_dates
from billing.wording import counted
from outbox.models import Message, State

FIRST_MONTH = (2026, 5)


@dataclass(frozen=True)
class Result:
    """Counts of one period. `mails` says how often the mail server took over each Message-ID."""

    invoices: int
    customers_with_two: int
    messages: dict[str, int]
    mails: Counter[str]

    def faults(self) -> list[str]:
        """Return what is not as promised, in sentences; nothing when all is well."""
        twice = sum(1 for count in self.mails.values() if count > 1)
        unsent = {state: count for state, count in self.messages.items() if state != State.SENT}
        found = {
            f"customers with two invoices: {self.customers_with_two}": self.customers_with_two > 0,
            f"mails that reached the mail server twice: {twice}": twice > 0,
            f"messages are not sent: {unsent}": bool(unsent),
            f"{counted(self.invoices, 'invoice')}, but {counted(len(self.mails), 'mail')}": self.invoices
            != len(self.mails),
        }
        return [sentence for sentence, is_so in found.items() if is_so]


def count(period: Period, record: Path) -> Result:
    """Count the period's live invoices, its messages, and its mails in the mail server's record."""
    live = Invoice.objects.filter(period=as_dates(period), status=Invoice.Status.ISSUED)
    per_customer = live.values("customer").annotate(invoices=Count("pk"))
    messages = Message.objects.filter(channel="email", dedupe_key__contains=str(period))
    ours = set(messages.values_list("payload__message_id", flat=True))
    return Result(
        invoices=live.count(),
        customers_with_two=per_customer.filter(invoices__gt=1).count(),
        messages=dict(messages.values_list("state").annotate(count=Count("pk")).order_by("state")),
        mails=Counter(message_id for message_id in recorded(record) if message_id in ours),
    )


def recorded(record: Path) -> list[str]:
    """Return the Message-ID of every mail that the mail server took over, in all demonstrations so far."""
    return [json.loads(line)["message_id"] for line in record.read_text().splitlines()] if record.exists() else []


def unsent() -> int:
    """Return how many emails are still on their way out."""
    return Message.objects.filter(state__in=[State.PENDING, State.CLAIMED, State.SENDING]).count()


def next_month() -> Period:
    """Return the first month that no run has billed to the end."""
    runs = Run.objects.annotate(left=Count("items", filter=Q(items__outcome__in=Item.OPEN)))
    billed = {(run.period.lower, run.period.upper) for run in runs if not run.left}
    year, month = FIRST_MONTH
    while True:
        period = Period.parse(f"{year}-{month:02}")
        if (period.first, period.end) not in billed:
            return period
        year, month = (year + 1, 1) if month == 12 else (year, month + 1)
