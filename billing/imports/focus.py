"""Usage and cost in the FOCUS 1.0 layout (FinOps Open Cost and Usage Specification): rows that arrive priced."""

import hashlib
import json
from decimal import Decimal

from billing.imports import fields
from billing.imports.fields import Refused
from billing.imports.usage import NegativeRows, UsageImporter, UsageRow

# What a charge is, as opposed to how much it came to: a row has no id of its own in FOCUS. Tags and display names are
# left out, since they may differ in a later export of the same charge.
IDENTITY = (
    *("ProviderName", "PublisherName", "InvoiceIssuerName", "BillingAccountId", "SubAccountId"),
    *("ChargePeriodStart", "ChargePeriodEnd", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency"),
    *("CommitmentDiscountId", "PricingCategory", "PricingUnit", "ConsumedUnit", "ServiceName", "SkuId", "SkuPriceId"),
    *("RegionId", "AvailabilityZone", "ResourceId"),
)


class FocusImporter(UsageImporter):
    """Takes `BilledCost` as it is for the net amount, at `ChargePeriodStart`; NULL and empty mean absent.

    The metric is the service in its pricing unit. Two rows that name the same charge are one; with other amounts they
    conflict. Where a file has an id per row, `key_column` names it.
    """

    optional_columns = None

    def __init__(
        self,
        *,
        source: str = "focus",
        customer_column: str = "SubAccountId",
        key_column: str = "",
        tax_category: str = "standard",
        negative_rows: NegativeRows = NegativeRows.NET,
    ) -> None:
        super().__init__(source=source, negative_rows=negative_rows)
        self.customer_column = customer_column
        self.key_column = key_column
        self.tax_category = tax_category
        own = [customer_column, key_column] if key_column else [customer_column]
        self.required_columns = ("BilledCost", "BillingCurrency", "ChargePeriodStart", "ServiceName", *own)

    def parse(self, row: dict[str, str]) -> UsageRow:
        row = {name: "" if value == "NULL" else value for name, value in row.items()}
        if row.get("ChargeCategory") == "Tax":
            raise Refused("it is a tax, which is added when the invoice is issued")
        unit = row.get("PricingUnit", "")
        quantity = row.get("PricingQuantity", "")
        return self.admitted(
            UsageRow(
                source=self.source,
                key=fields.text(self.key_column, row[self.key_column], 200) if self.key_column else _key(row),
                customer=fields.text(self.customer_column, row[self.customer_column], 200),
                metric=fields.text("ServiceName", ", ".join(filter(None, (row["ServiceName"], unit))), 300),
                subject="",
                quantity=fields.decimal("PricingQuantity", quantity, 33, 15) if quantity else Decimal(0),
                amount=fields.decimal("BilledCost", row["BilledCost"], 33, 15),
                currency=fields.currency("BillingCurrency", row["BillingCurrency"]),
                tax_category=self.tax_category,
                occurred_at=fields.utc_moment("ChargePeriodStart", row["ChargePeriodStart"]),
            )
        )


def _key(row: dict[str, str]) -> str:
    identity = [row.get(name, "") for name in IDENTITY]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()
