from typing import Any

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest
from django.utils.html import format_html_join

from billing.admin.forms import CustomerForm
from billing.admin.inspecting import FastAdmin, list_link
from billing.admin.searching import IndexedSearch
from billing.models import Customer, Invoice, Item, UsageEvent
from leases.models import Incident, LeaseRecord


@admin.register(Customer)
class CustomerAdmin(IndexedSearch, FastAdmin):
    """Customers are people's to edit; they are closed, never deleted."""

    form = CustomerForm
    list_display = ["code", "name", "email", "currency", "timezone", "country", "status"]
    list_filter = ["status"]
    search_fields = ["code"]
    search_help_text = "The beginning of a code; else any part of a name or an address, which takes longer."
    ordering = ["code"]
    fields = ["code", "name", "email", "currency", "timezone", "country", "status", "documents", "lease"]

    def searches(self, term: str) -> list[Q]:
        return [Q(code__startswith=term), Q(name__icontains=term) | Q(email__icontains=term)]

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_readonly_fields(self, request: HttpRequest, obj: Customer | None = None) -> list[str]:
        # Imports, runs and people know a customer by the code.
        return ["documents", "lease"] if obj is None else ["code", "documents", "lease"]

    @admin.display(description="look at")
    def documents(self, customer: Customer) -> str:
        if customer.pk is None:
            return "-"
        links = [
            list_link(Invoice, "invoices", customer__id__exact=customer.pk),
            list_link(Item, "items of runs", customer__id__exact=customer.pk),
            list_link(UsageEvent, "usage not invoiced yet", customer__id__exact=customer.pk, invoiced="no"),
        ]
        return format_html_join(" · ", "{}", [(one,) for one in links])

    @admin.display(description="lease")
    def lease(self, customer: Customer) -> str:
        """The name that commands, logs and incidents know the customer by."""
        if customer.pk is None:
            return "-"
        resource = f"customer:{customer.pk}"
        links = [resource, list_link(LeaseRecord, "leases", resource=resource)]
        links.append(list_link(Incident, "incidents", resource=resource))
        return format_html_join(" · ", "{}", [(one,) for one in links])
