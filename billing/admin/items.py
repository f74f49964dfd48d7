from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from billing import money, parking
from billing.admin.confirming import Question, confirmed
from billing.admin.inspecting import DatedPage, Inspector, link
from billing.admin.lines import SHOWN_LINES
from billing.admin.runs import OPEN
from billing.admin.searching import IndexedSearch
from billing.errors import BrokerUnavailable, NeedsPerson
from billing.models import Item, Run
from billing.preview import draft
from billing.slots import Slot, as_period

SHOWN_RUNS = 12


class RunFilter(admin.SimpleListFilter):
    """The newest runs, and the one that is chosen."""

    title = "run"
    parameter_name = "run"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        runs = list(Run.objects.order_by("-id")[:SHOWN_RUNS])
        chosen = self.value() or ""
        if chosen.isdecimal() and all(run.pk != int(chosen) for run in runs):
            runs.extend(Run.objects.filter(pk=chosen))
        return [(str(run.pk), f"{run}, {as_period(run.period)}") for run in runs]

    def has_output(self) -> bool:
        return bool(self.lookup_choices)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value() or ""
        return queryset.filter(run=chosen) if chosen.isdecimal() else queryset


class OutcomeFilter(admin.SimpleListFilter):
    """The outcomes, and the items that have none yet."""

    title = "outcome"
    parameter_name = "outcome"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        outcomes = [(outcome.value, str(outcome.label)) for outcome in Item.Outcome]
        return [("waiting", "Waits for a person"), (OPEN, "Open"), *outcomes]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        if chosen is None:
            return queryset
        if chosen == "waiting":
            return queryset.filter(pk__in=parking.waiting_items().values("pk"))
        return queryset.filter(outcome="" if chosen == OPEN else chosen)


@confirmed(
    Question(
        "Try again now",
        "The workers are given these customers at once, whatever they waited for. What is invoiced stays as it is.",
        "Try again",
    ),
    permission="retry",
)
def retry(item: Item, answers: dict[str, Any]) -> str:
    try:
        parking.retry(item.pk)
    except BrokerUnavailable as error:
        return f"open again; {error}"
    return "given to the workers"


@confirmed(
    Question(
        "Park",
        "These customers are not invoiced for the period until somebody has them tried again. Only what is still to be "
        "done can be parked: nothing that was issued is taken back.",
        "Park",
    ),
    permission="park",
)
def park(item: Item, answers: dict[str, Any]) -> str:
    parking.park(item.pk, answers["reason"])
    return "parked"


@admin.register(Item)
class ItemAdmin(IndexedSearch, Inspector):
    list_display = [
        "shown_customer", "shown_outcome", "result", "shown_run", "attempts", "concluded_at",
    ]  # fmt: skip
    list_display_links = ["shown_customer"]
    list_filter = [OutcomeFilter, RunFilter]
    list_select_related = ["customer", "run", "invoice"]
    # As the index has them; within a run, what is skipped or parked comes first.
    actions = [retry, park]
    ordering = ["-run_id", "-outcome", "-id"]
    date_hierarchy = "run__created_at"
    fields = [
        "customer_link", "shown_run", "shown_outcome", "reason", "shown_invoice", "attempts", "started_at",
        "concluded_at", "retry_at", "enqueued_at", "rescues",
    ]  # fmt: skip

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[DatedPage]:
        return DatedPage

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("billing.retry_item")

    def has_park_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("billing.park_item")

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.preview_view)
        return [path("<int:item_id>/preview/", view, name="billing_item_preview"), *super().get_urls()]

    def offers(self, action: str, object_id: str) -> bool:
        still_to_be_done = Item.objects.filter(pk=object_id, outcome__in=Item.OPEN)
        return super().offers(action, object_id) and (action != "park" or still_to_be_done.exists())

    def row_links(self, request: HttpRequest, object_id: str) -> list[tuple[str, str]]:
        if not request.user.has_perm("billing.preview_item"):
            return []
        return [(reverse("admin:billing_item_preview", args=[object_id]), "Preview")]

    def preview_view(self, request: HttpRequest, item_id: int) -> HttpResponse:
        """Show what the item's customer would be invoiced now, and the mail about it."""
        if not request.user.has_perm("billing.preview_item"):
            raise PermissionDenied
        item = get_object_or_404(Item.objects.select_related("customer", "run"), pk=item_id)
        context = {
            **self.admin_site.each_context(request),
            "title": f"Preview of {item.customer.code}, {as_period(item.run.period)}",
            "opts": self.opts,
            "item": item,
            **_drafted(item),
        }
        return TemplateResponse(request, "admin/billing/item/preview.html", context)

    @admin.display(description="customer")
    def shown_customer(self, item: Item) -> str:
        return item.customer.code

    @admin.display(description="customer")
    def customer_link(self, item: Item) -> str:
        return link(item.customer)

    @admin.display(description="run")
    def shown_run(self, item: Item) -> str:
        return link(item.run, f"{item.run}, {as_period(item.run.period)}")

    @admin.display(description="outcome")
    def shown_outcome(self, item: Item) -> str:
        return item.get_outcome_display() or "Open"

    @admin.display(description="invoice or reason")
    def result(self, item: Item) -> str:
        if item.invoice:
            return link(item.invoice)
        return item.reason if len(item.reason) <= 120 else f"{item.reason[:119]}…"

    @admin.display(description="invoice")
    def shown_invoice(self, item: Item) -> str:
        return link(item.invoice)


def _drafted(item: Item) -> dict[str, Any]:
    """Return what the preview shows: the draft and its first lines, or why there is none."""
    live = Slot(item.customer_id, as_period(item.run.period)).live_invoice()
    if live:
        return {"live": live}
    try:
        found = draft(item)
    except NeedsPerson as error:
        return {"refused": str(error)}
    currency = found.invoice.currency
    rows = [
        (line.metric, line.subject, money.exact_text(line.quantity), money.format_minor(line.net_minor, currency))
        for line in found.lines[:SHOWN_LINES]
    ]
    net = money.format_minor(found.invoice.net_minor, currency)
    return {"draft": found, "rows": rows, "hidden": max(0, len(found.lines) - SHOWN_LINES), "net": net}
