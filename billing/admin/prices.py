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
        return super().has_change_permission(request, obj) and (obj is None or obj.valid_from > timezone.now())

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @admin.display(description="unit price")
    def shown_unit_price(self, price: Price) -> str:
        return f"{price.currency} {price.unit_price.normalize():f}"
