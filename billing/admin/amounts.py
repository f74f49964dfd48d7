"""Sums of money as people read them."""

from collections.abc import Callable
from typing import Any

from django.contrib import admin

from billing import money


def amount(field: str, label: str, *, currency_of: str = "") -> Callable[[Any], str]:
    """Return a column that shows the minor units in `field` with the currency's own decimals.

    `currency_of` names the relation whose currency it is, where the row has none itself.
    """

    def shown(row: Any) -> str:
        owner = getattr(row, currency_of) if currency_of else row
        return money.format_minor(getattr(row, field), owner.currency)

    return admin.display(description=label)(shown)
