"""Usage from CSV, and what every source of usage has in common."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum

from django.db.models import Min

from billing import money
from billing.imports import fields
from billing.imports.batches import Record, insert_new
from billing.imports.fields import Refused
from billing.imports.report import Verdict
from billing.models import Customer, Price, UsageEvent
from billing.periods import YEARS_AHEAD


class NegativeRows(StrEnum):
    """What happens to rows of negative quantity or amount (credits, corrections)."""

    NET = "net"  # taken, and set off against the rest of their line
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class UsageRow:
    source: str
    key: str
    customer: str
    metric: str
    subject: str
    quantity: Decimal
    amount: Decimal | None
    currency: str
    tax_category: str
    occurred_at: datetime

    def __str__(self) -> str:
        return f"usage {self.source}:{self.key}"

    @property
    def digest(self) -> str:
        """SHA-256 of what the row means, whatever way its numbers and times are written."""
        amount = None if self.amount is None else money.exact_text(self.amount)
        content = [self.customer, self.metric, self.subject, money.exact_text(self.quantity)]
        content += [amount or "", self.currency, self.tax_category, self.occurred_at.isoformat()]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


class UsageImporter:
    """CSV with one row per event; with an `amount` the row arrives priced and names its `currency`."""

    required_columns: Sequence[str] = ("key", "customer", "metric", "quantity", "occurred_at")
    optional_columns: Sequence[str] | None = ("source", "subject", "amount", "currency", "tax_category")

    def __init__(self, *, source: str, negative_rows: NegativeRows = NegativeRows.NET) -> None:
        self.source = source
        self.negative_rows = negative_rows
        self._priced_from: dict[tuple[str, str], datetime] | None = None

    def parse(self, row: dict[str, str]) -> UsageRow:
        priced = bool(row.get("amount", "").strip())
        category = fields.text("tax_category", row.get("tax_category", ""), 30, blank=True) or "standard"
        return self.admitted(
            UsageRow(
                source=fields.text("source", row.get("source", ""), 100, blank=True) or self.source,
                key=fields.text("key", row["key"], 200),
                customer=fields.text("customer", row["customer"], 200),
                metric=fields.text("metric", row["metric"], 300),
                subject=fields.text("subject", row.get("subject", ""), 300, blank=True),
                quantity=fields.decimal("quantity", row["quantity"], 33, 15),
                amount=fields.decimal("amount", row["amount"], 33, 15) if priced else None,
                currency=fields.currency("currency", row.get("currency", "")) if priced else "",
                tax_category=category if priced else "",
                occurred_at=fields.moment("occurred_at", row["occurred_at"]),
            )
        )

    def admitted(self, row: UsageRow) -> UsageRow:
        """Return the row unless the policy for negative rows refuses it, or its time is a typing error."""
        if row.occurred_at.year > datetime.now(UTC).year + YEARS_AHEAD:
            raise Refused(f"its time {row.occurred_at.isoformat()} lies more than {YEARS_AHEAD} years ahead")
        if self.negative_rows is NegativeRows.REFUSE and min(row.quantity, row.amount or Decimal(0)) < 0:
            raise Refused("its quantity or amount is negative, and --negative-rows says refuse")
        return row

    def store(self, batch: Sequence[UsageRow], using: str) -> Sequence[Verdict | Refused]:
        customers = {
            code: (pk, currency)
            for code, pk, currency in Customer.objects.using(using)
            .filter(code__in={row.customer for row in batch})
            .values_list("code", "pk", "currency")
        }
        verdicts: list[Verdict | Refused] = []
        records: list[Record] = []
        for row in batch:
            refused = self._refusal(row, customers.get(row.customer), using)
            verdicts.append(refused or Verdict.TAKEN)
            if not refused:
                records.append(self._record(row, customers[row.customer][0]))
        if records:
            inserted = iter(insert_new(UsageEvent, records, key=["source", "key"], compared=["digest"], using=using))
            verdicts = [verdict if isinstance(verdict, Refused) else next(inserted) for verdict in verdicts]
        return verdicts

    def _refusal(self, row: UsageRow, customer: tuple[int, str] | None, using: str) -> Refused | None:
        if customer is None:
            return Refused(f"customer {row.customer!r} is unknown; import it first")
        _, currency = customer
        if row.amount is not None:
            if row.currency != currency:
                return Refused(f"its amount is in {row.currency}, customer {row.customer} is invoiced in {currency}")
            return None
        since = self._prices(using).get((row.metric, currency))
        if since is None or row.occurred_at < since:
            return Refused(f"there is no price for {row.metric!r} in {currency} at {row.occurred_at.isoformat()}")
        return None

    def _prices(self, using: str) -> dict[tuple[str, str], datetime]:
        if self._priced_from is None:
            first = Price.objects.using(using).values_list("metric", "currency").annotate(first=Min("valid_from"))
            self._priced_from = {(metric, currency): at for metric, currency, at in first}
        return self._priced_from

    @staticmethod
    def _record(row: UsageRow, customer_id: int) -> Record:
        return {
            "source": row.source,
            "key": row.key,
            "customer_id": customer_id,
            "metric": row.metric,
            "subject": row.subject,
            "quantity": row.quantity,
            "amount": row.amount,
            "currency": row.currency,
            "tax_category": row.tax_category,
            "occurred_at": row.occurred_at,
            "digest": row.digest,
        }
