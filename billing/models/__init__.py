from billing.models.customer import Customer
from billing.models.invoice import CreditNote, Invoice, InvoiceLine, Series, TaxAnswer
from billing.models.price import Price
from billing.models.run import Item, Run
from billing.models.usage import UsageEvent

__all__ = [
    "CreditNote",
    "Customer",
    "Invoice",
    "InvoiceLine",
    "Item",
    "Price",
    "Run",
    "Series",
    "TaxAnswer",
    "UsageEvent",
]
