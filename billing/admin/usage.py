from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html

from billing import money
from billing.admin.inspecting import DatedPage, Inspector, link
from billing.admin.searching import IndexedSearch
from billing.models import UsageEvent


class InvoicedFilter(admin.SimpleListFilter):
    title = "invoiced"
    parameter_name = "invoiced"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("no", "Not yet"), ("yes", "Yes")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset if self.value() is None else queryset.filter(invoice__isnull=self.value() == "no")


@admin.register(UsageEvent)
class UsageEventAdmin(IndexedSearch, Inspector):
    list_display = [
        "event", "shown_customer", "what", "shown_quantity", "shown_amount", "shown_invoice", "occurred_at",
        "received_at",
    ]  # fmt: skip
    list_display_links = ["event"]
    list_filter = [InvoicedFilter]
    list_select_related = ["customer", "invoice"]
    search_help_text = "An event (source:key); or the beginning of a customer's code, for usage not invoiced yet."
    ordering = ["-id"]
    date_hierarchy = "received_at"
    fields = [
        "source", "key", "shown_customer", "metric", "subject", "shown_quantity", "shown_amount", "tax_category",
        "occurred_at", "received_at", "shown_invoice", "digest",
    ]  # fmt: skip

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[DatedPage]:
        return DatedPage

    def searches(self, term: str) -> list[Q]:
        source, _, key = term.partition(":")
        # What is invoiced is found from its invoice.
        return [Q(source=source, key=key), Q(customer__code__startswith=term, invoice=None)]

    @admin.display(description="event")
    def event(self, usage: UsageEvent) -> str:
        return str(usage)

    @admin.display(description="customer")
    def shown_customer(self, usage: UsageEvent) -> str:
        return link(usage.customer, usage.customer.code)

    @admin.display(description="metric, subject")
    def what(self, usage: UsageEvent) -> str:
        return format_html("{}<br>{}", usage.metric, usage.subject)

    @admin.display(description="quantity")
    def shown_quantity(self, usage: UsageEvent) -> str:
        return money.exact_text(usage.quantity)

    @admin.display(description="amount", empty_value="by price")
    def shown_amount(self, usage: UsageEvent) -> str | None:
        return None if usage.amount is None else f"{usage.currency} {money.exact_text(usage.amount)}"

    @admin.display(description="invoice", empty_value="not yet")
    def shown_invoice(self, usage: UsageEvent) -> str | None:
        return link(usage.invoice) if usage.invoice else None
