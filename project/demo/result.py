"""What came of it: counted in the database and, independently, in what the mail server took over."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from django.db.models import Count

from billing.models import Invoice, Run
from billing.periods import Period
from billing.slots import as_dates
from outbox.models import Message, State


@dataclass(frozen=True)
class Result:
    """Counts of one period. `mails` is what the mail server recorded: (recipient, Message-ID) and how often."""

    invoices: int
    customers_with_two: int
    messages: dict[str, int]
    mails: Counter[tuple[str, str]]

    @property
    def mails_twice(self) -> int:
        return sum(1 for count in self.mails.values() if count > 1)

    def faults(self) -> list[str]:
        """Return what is not as promised, in sentences; nothing when all is well."""
        unsent = {state: count for state, count in self.messages.items() if state != State.SENT}
        found = {
            f"{self.customers_with_two} customers have two invoices": self.customers_with_two,
            f"{self.mails_twice} mails reached the mail server twice": self.mails_twice,
            f"{unsent} messages are not sent": len(unsent),
            f"{self.invoices} invoices, but {len(self.mails)} mails": self.invoices != len(self.mails),
        }
        return [sentence for sentence, is_so in found.items() if is_so]


def count(period: Period, record: Path) -> Result:
    """Count the period's live invoices, and the mails in the mail server's record of this demonstration."""
    live = Invoice.objects.filter(period=as_dates(period), status=Invoice.Status.ISSUED)
    per_customer = live.values("customer").annotate(invoices=Count("pk"))
    states = Message.objects.filter(channel="email", dedupe_key__contains=str(period)).values_list("state")
    return Result(
        invoices=live.count(),
        customers_with_two=per_customer.filter(invoices__gt=1).count(),
        messages=dict(states.annotate(count=Count("pk")).order_by("state")),
        mails=Counter(_mails(record)),
    )


def unsent() -> int:
    """Return how many emails are still on their way out."""
    return Message.objects.filter(state__in=[State.PENDING, State.CLAIMED, State.SENDING]).count()


def next_month() -> Period:
    """Return the first month from May 2026 on that no run has billed."""
    billed = {(dates.lower, dates.upper) for dates in Run.objects.values_list("period", flat=True)}
    year, month = 2026, 5
    while True:
        period = Period.parse(f"{year}-{month:02}")
        if (period.first, period.end) not in billed:
            return period
        year, month = (year + 1, 1) if month == 12 else (year, month + 1)


def _mails(record: Path) -> list[tuple[str, str]]:
    lines = record.read_text().splitlines() if record.exists() else []
    envelopes = [json.loads(line) for line in lines]
    return [(recipient, envelope["message_id"]) for envelope in envelopes for recipient in envelope["rcpt_tos"]]
