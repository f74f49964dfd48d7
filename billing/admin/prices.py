from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils import timezone

from billing.admin.forms import PriceForm
from billing.admin.inspecting import FastAdmin
from billing.models import Price


@admin.register(Price)
class PriceAdmin(FastAdmin):
    """A price may be corrected until it takes effect; from then on a new one follows it."""

    form = PriceForm
    list_display = ["metric", "currency", "shown_unit_price", "tax_category", "valid_from"]
    list_filter = ["currency", "tax_category"]
    search_fields = ["metric__icontains"]
    search_help_text = "Any part of a metric."
    date_hierarchy = "valid_from"
    ordering = ["metric", "currency", "-valid_from"]

    def has_change_permission(self, request: HttpRequest, obj: Price | None = None) -> bool:
        return super().has_change_permission(request, obj) and not _is_in_use(obj)

    def get_fieldsets(self, request: HttpRequest, obj: Price | None = None) -> Any:
        about = {"description": "In use, so it does not change: add one with a later valid from."}
        return [
            (name, {**options, **about} if _is_in_use(obj) else options)
            for name, options in super().get_fieldsets(request, obj)
        ]

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @admin.display(description="unit price")
    def shown_unit_price(self, price: Price) -> str:
        return f"{price.currency} {price.unit_price.normalize():f}"


def _is_in_use(price: Price | None) -> bool:
    return price is not None and price.valid_from <= timezone.now()
