"""Customers from CSV."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from billing.imports import fields
from billing.imports.batches import insert_new
from billing.imports.fields import Refused
from billing.imports.report import Verdict
from billing.models import Customer


@dataclass(frozen=True, slots=True)
class CustomerRow:
    code: str
    name: str
    email: str
    currency: str
    timezone: str
    country: str
    status: str = Customer.Status.ACTIVE.value

    def __str__(self) -> str:
        return f"customer {self.code}"


class CustomerImporter:
    required_columns: Sequence[str] = ("code", "name", "email", "currency")
    optional_columns: Sequence[str] | None = ("timezone", "country")

    def parse(self, row: dict[str, str]) -> CustomerRow:
        return CustomerRow(
            code=fields.text("code", row["code"], 200),
            name=fields.text("name", row["name"], 500),
            email=fields.email("email", row["email"]),
            currency=fields.currency("currency", row["currency"]),
            timezone=fields.timezone("timezone", row.get("timezone", "")),
            country=fields.country("country", row.get("country", "")),
        )

    def store(self, batch: Sequence[CustomerRow], using: str) -> Sequence[Verdict | Refused]:
        records = [asdict(row) for row in batch]
        compared = ("name", "email", "currency", "timezone", "country")
        return insert_new(Customer, records, key=["code"], compared=compared, using=using)
