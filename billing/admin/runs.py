from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.db.models import Count
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from billing import money
from billing.admin.inspecting import Inspector, link, list_link
from billing.models import Item, Run
from billing.slots import as_period
from billing.status import totals
from billing.wording import counted

OPEN = "open"


@admin.register(Run)
class RunAdmin(Inspector):
    list_display = ["__str__", "shown_period", "progress", "outcomes", "cutoff_at", "created_at"]
    list_per_page = 20
    date_hierarchy = "created_at"
    ordering = ["-id"]
    fields = ["shown_period", "cutoff_at", "created_at", "progress", "outcomes", "issued", "attention"]

    def look_up(self, rows: Sequence[Any]) -> None:
        found: dict[int, dict[str, int]] = {run.pk: {} for run in rows}
        grouped = Item.objects.filter(run__in=found).values_list("run", "outcome").annotate(count=Count("pk"))
        for run_id, outcome, count in grouped.order_by("run", "outcome"):
            found[run_id][outcome or OPEN] = count
        for run in rows:
            run.counts = found[run.pk]

    @admin.display(description="period")
    def shown_period(self, run: Run) -> str:
        return str(as_period(run.period))

    @admin.display(description="done")
    def progress(self, run: Any) -> SafeString:
        counts = self._counts(run)
        items = sum(counts.values())
        done = items - counts.get(OPEN, 0) - counts.get(Item.Outcome.FAILED, 0)
        text = f"{done:,} of {items:,}"
        return format_html('<progress value="{}" max="{}">{}</progress> {}', done, max(items, 1), text, text)

    @admin.display(description="outcomes")
    def outcomes(self, run: Any) -> SafeString:
        links = [
            (list_link(Item, f"{count:,} {outcome.replace('_', ' ')}", run=run.pk, outcome=outcome),)
            for outcome, count in self._counts(run).items()
        ]
        return format_html_join(", ", "{}", links) or SafeString("nobody")

    @admin.display(description="issued")
    def issued(self, run: Run) -> SafeString:
        rows = [
            (
                counted(total.invoices, "invoice"),
                *(money.format_minor(amount, total.currency) for amount in (total.net_minor, total.tax_minor)),
                money.format_minor(total.gross_minor, total.currency),
            )
            for total in totals(run)
        ]
        return format_html_join("", "<div>{}: net {}, tax {}, gross {}</div>", rows) or SafeString("nothing")

    @admin.display(description="needs a person, or fails for now")
    def attention(self, run: Run) -> SafeString:
        troubled = Item.objects.filter(run=run, outcome__in=[Item.Outcome.PARKED, Item.Outcome.FAILED])
        rows = [
            (link(item, item.customer.code), item.get_outcome_display(), item.reason)
            for item in troubled.select_related("customer").order_by("-outcome", "pk")[:20]
        ]
        return format_html_join("", "<div>{} {}: {}</div>", rows) or SafeString("nobody")

    def _counts(self, run: Any) -> dict[str, int]:
        if not hasattr(run, "counts"):
            self.look_up([run])
        counts: dict[str, int] = run.counts
        return counts
