"""Prices from CSV."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from decimal import Decimal

from billing.imports import fields
from billing.imports.batches import insert_new
from billing.imports.fields import Refused
from billing.imports.report import Verdict
from billing.models import Price


@dataclass(frozen=True, slots=True)
class PriceRow:
    metric: str
    currency: str
    valid_from: datetime
    unit_price: Decimal
    tax_category: str

    def __str__(self) -> str:
        return f"the price of {self.metric} in {self.currency} from {self.valid_from:%Y-%m-%dT%H:%M:%SZ}"


class PriceImporter:
    required_columns: Sequence[str] = ("metric", "currency", "unit_price", "valid_from")
    optional_columns: Sequence[str] | None = ("tax_category",)

    def parse(self, row: dict[str, str]) -> PriceRow:
        unit_price = fields.decimal("unit_price", row["unit_price"], 24, 12)
        if unit_price < 0:
            raise Refused(f"unit_price {unit_price} is negative; a credit is usage with a negative quantity or amount")
        return PriceRow(
            metric=fields.text("metric", row["metric"], 300),
            currency=fields.currency("currency", row["currency"]),
            valid_from=fields.utc_moment("valid_from", row["valid_from"]),
            unit_price=unit_price,
            tax_category=fields.text("tax_category", row.get("tax_category", ""), 30, blank=True) or "standard",
        )

    def store(self, batch: Sequence[PriceRow], using: str) -> Sequence[Verdict | Refused]:
        return insert_new(
            Price,
            [asdict(row) for row in batch],
            key=["metric", "currency", "valid_from"],
            compared=["unit_price", "tax_category"],
            using=using,
        )
