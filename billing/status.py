"""How far a run is: counts per outcome, what needs a person, and what was invoiced."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC
from typing import Any

from django.db.models import Count, Q, QuerySet, Sum

from billing import money
from billing.models import Item, Run
from billing.slots import as_period
from billing.unclaimed import Unclaimed, left_by
from billing.wording import counted

SHOWN = 20


@dataclass(frozen=True, slots=True)
class Attention:
    """An item without an invoice, and why: failed, parked or skipped."""

    customer: str
    outcome: str
    reason: str
    attempts: int


@dataclass(frozen=True, slots=True)
class CurrencyTotal:
    """What the run issued in one currency."""

    currency: str
    invoices: int
    net_minor: int
    tax_minor: int
    gross_minor: int


@dataclass(frozen=True, slots=True)
class Status:
    """A run at one moment; `open` counts items without an outcome, `failed` those that will be tried again."""

    run: int
    period: str
    counts: dict[str, int]
    attention: list[Attention]
    skipped: list[Attention]
    unclaimed: list[Unclaimed]
    shown: int
    totals: list[CurrencyTotal]

    @property
    def items(self) -> int:
        return sum(self.counts.values())

    @property
    def left(self) -> int:
        """How many items have no final outcome yet."""
        return self.counts["open"] + self.counts[Item.Outcome.FAILED]

    @property
    def parked(self) -> int:
        return self.counts[Item.Outcome.PARKED]

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in self.counts.items() if count)
        return f"run {self.run}, {self.period}: {counted(self.items, 'customer')}: {counts or 'nobody'}"

    def lines(self) -> Iterator[str]:
        """Yield the report for people."""
        yield str(self)
        for total in self.totals:
            amounts = (total.net_minor, total.tax_minor, total.gross_minor)
            net, tax, gross = (money.format_minor(amount, total.currency) for amount in amounts)
            yield f"  {counted(total.invoices, 'invoice')}: net {net}, tax {tax}, gross {gross}"
        for item in self.attention:
            yield f"  {item.customer} {item.outcome} (attempt {item.attempts}): {item.reason}"
        hidden = self.parked + self.counts[Item.Outcome.FAILED] - len(self.attention)
        if hidden > 0:
            yield f"  and {hidden} more"
        for item in self.skipped:
            yield f"  {item.customer} skipped: {item.reason}"
        if (hidden := self.counts[Item.Outcome.SKIPPED] - len(self.skipped)) > 0:
            yield f"  and {hidden} more skipped"
        if self.unclaimed:
            yield (
                f"  {counted(len(self.unclaimed), 'customer')} with usage up to the end of {self.period} that is on no "
                "invoice:"
            )
            yield from unclaimed_lines(self.unclaimed, self.shown)

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "period": self.period,
            "items": self.items,
            "left": self.left,
            "outcomes": self.counts,
            "totals": [{name: getattr(total, name) for name in CurrencyTotal.__slots__} for total in self.totals],
            "attention": [{name: getattr(item, name) for name in Attention.__slots__} for item in self.attention],
            "skipped": [{"customer": item.customer, "reason": item.reason} for item in self.skipped],
            "unclaimed": [
                {**asdict(left), "first": left.first.isoformat(), "last": left.last.isoformat()}
                for left in self.unclaimed[: self.shown]
            ],
            "unclaimed_customers": len(self.unclaimed),
        }


def unclaimed_lines(found: Sequence[Unclaimed], shown: int) -> Iterator[str]:
    """Yield one line for people per customer, up to `shown`."""
    for left in found[:shown]:
        first, last = (f"{at.astimezone(UTC):%Y-%m-%d %H:%M}" for at in (left.first, left.last))
        yield f"    {left.customer}: {counted(left.usage, 'usage event')} from {first} to {last} UTC"
    if len(found) > shown:
        yield f"    and {counted(len(found) - shown, 'more customer')}"


def status(run: Run, *, shown: int = SHOWN) -> Status:
    """Return where the run stands, with up to `shown` of the items that failed or are parked, and of the skipped.

    `unclaimed` are all customers that the run is done with and that have usage left; `shown` of them are written out.
    """
    items = Item.objects.filter(run=run)
    troubled = items.filter(outcome__in=[Item.Outcome.PARKED, Item.Outcome.FAILED]).order_by("-outcome", "pk")
    return Status(
        run=run.pk,
        period=str(as_period(run.period)),
        counts=counts(run),
        attention=_attention(troubled, shown),
        skipped=_attention(items.filter(outcome=Item.Outcome.SKIPPED).order_by("pk"), shown),
        unclaimed=left_by(run),
        shown=shown,
        totals=totals(run),
    )


def totals(run: Run) -> list[CurrencyTotal]:
    """Return what the run issued, per currency."""
    rows = (
        Item.objects.filter(run=run, outcome=Item.Outcome.ISSUED)
        .values_list("invoice__currency")
        .annotate(
            count=Count("pk"),
            net=Sum("invoice__net_minor"),
            tax=Sum("invoice__tax_minor"),
            gross=Sum("invoice__gross_minor"),
        )
        .order_by("invoice__currency")
    )
    return [CurrencyTotal(str(row[0]), row[1], *map(int, row[2:])) for row in rows]


def _attention(items: QuerySet[Item], shown: int) -> list[Attention]:
    rows = items.values_list("customer__code", "outcome", "reason", "attempts")[:shown]
    return [Attention(*row) for row in rows]


def counts(run: Run) -> dict[str, int]:
    """Return how many items have each outcome, and as `open` how many have none."""
    found: dict[str, int] = Item.objects.filter(run=run).aggregate(
        open=Count("pk", filter=Q(outcome="")),
        **{outcome.value: Count("pk", filter=Q(outcome=outcome)) for outcome in Item.Outcome},
    )
    return found
