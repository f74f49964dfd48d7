"""What people see of billing, with Django's own admin.

What the system writes can be looked at and not be changed; customers and prices are people's. What a person may do to
an invoice or an item is an action with a permission of its own, a page that asks first, and an entry in the history.
"""

from billing.admin import (
    credit_notes,
    customers,
    invoices,
    items,
    lines,
    prices,
    runs,
    series,
    tax_answers,
    usage,
)

__all__ = [
    "credit_notes",
    "customers",
    "invoices",
    "items",
    "lines",
    "prices",
    "runs",
    "series",
    "tax_answers",
    "usage",
]
