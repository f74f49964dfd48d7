from decimal import Decimal
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from billing.admin.amounts import amount
from billing.admin.inspecting import Inspector, link
from billing.models import InvoiceLine

if TYPE_CHECKING:
    TabularInline = admin.TabularInline[Any, Any]
else:
    TabularInline = admin.TabularInline

#: Lines on the invoice's own page; all of them are in the list of lines.
SHOWN_LINES = 25


class LineColumns:
    """How a line is shown, on its invoice and in the list of lines."""

    net = staticmethod(amount("net_minor", "net", currency_of="invoice"))

    @admin.display(description="quantity")
    def shown_quantity(self, line: InvoiceLine) -> str:
        return line.shown_quantity

    @admin.display(description="unit price")
    def shown_unit_price(self, line: InvoiceLine) -> str:
        return "as delivered" if line.unit_price is None else f"{line.invoice.currency} {line.unit_price.normalize():f}"

    @admin.display(description="tax")
    def rate(self, line: InvoiceLine) -> str:
        return "-" if line.tax_rate is None else percent(line.tax_rate)


def percent(rate: Decimal) -> str:
    """Return a rate as people write it: 0.19 is 19 %."""
    return f"{(rate * 100).normalize():f} %"


class LinesInline(LineColumns, TabularInline):
    """The first lines of an invoice."""

    model = InvoiceLine
    fields = readonly_fields = ("metric", "subject", "shown_quantity", "shown_unit_price", "rate", "net")
    verbose_name_plural = f"lines, up to the first {SHOWN_LINES}"
    can_delete = False
    show_change_link = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.filter(position__lte=SHOWN_LINES).select_related("invoice").order_by("position")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(InvoiceLine)
class InvoiceLineAdmin(LineColumns, Inspector):
    """All lines of an invoice, page by page; reached from the invoice."""

    list_display = [
        "position", "shown_invoice", "metric", "subject", "shown_quantity", "shown_unit_price", "tax_category", "rate",
        "net", "usage_count",
    ]  # fmt: skip
    list_display_links = ["position"]
    list_select_related = ["invoice"]
    ordering = ["-invoice_id", "-position"]
    fields = [
        "position", "shown_invoice", "metric", "subject", "shown_quantity", "shown_unit_price", "tax_category", "rate",
        "net", "usage_count", "token",
    ]  # fmt: skip

    def get_ordering(self, request: HttpRequest) -> list[Any]:
        # Of one invoice from the top; of all the newest first. Both as the index has them.
        of_one = any(name.startswith("invoice__") for name in request.GET)
        return ["invoice_id", "position"] if of_one else ["-invoice_id", "-position"]

    def has_module_permission(self, request: HttpRequest) -> bool:
        return False

    @admin.display(description="invoice")
    def shown_invoice(self, line: InvoiceLine) -> str:
        return link(line.invoice)
