from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from billing.admin.inspecting import Inspector, link
from billing.admin.runs import OPEN
from billing.admin.searching import IndexedSearch
from billing.models import Item, Run
from billing.slots import as_period

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
        return [(OPEN, "Open"), *((outcome.value, str(outcome.label)) for outcome in Item.Outcome)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        if chosen is None:
            return queryset
        return queryset.filter(outcome="" if chosen == OPEN else chosen)


@admin.register(Item)
class ItemAdmin(IndexedSearch, Inspector):
    list_display = [
        "shown_customer", "shown_run", "shown_outcome", "shown_reason", "attempts", "shown_invoice", "concluded_at",
    ]  # fmt: skip
    list_display_links = ["shown_customer"]
    list_filter = [OutcomeFilter, RunFilter]
    list_select_related = ["customer", "run", "invoice"]
    # As the index has them; within a run, what is skipped or parked comes first.
    ordering = ["-run_id", "-outcome", "-id"]
    fields = [
        "customer_link", "shown_run", "shown_outcome", "reason", "shown_invoice", "attempts", "started_at",
        "concluded_at", "retry_at", "enqueued_at", "rescues",
    ]  # fmt: skip

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

    @admin.display(description="reason")
    def shown_reason(self, item: Item) -> str:
        return item.reason if len(item.reason) <= 120 else f"{item.reason[:119]}…"

    @admin.display(description="invoice")
    def shown_invoice(self, item: Item) -> str:
        return link(item.invoice)
