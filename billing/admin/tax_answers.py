from decimal import Decimal

from django.contrib import admin
from django.utils.html import format_html, format_html_join

from billing.admin.inspecting import Inspector, link
from billing.admin.lines import percent
from billing.admin.searching import IndexedSearch
from billing.models import TaxAnswer

SHOWN_RATES = 50


@admin.register(TaxAnswer)
class TaxAnswerAdmin(IndexedSearch, Inspector):
    list_display = ["document", "shown_customer", "lines", "answered_at"]
    list_select_related = ["customer"]
    ordering = ["-id"]
    fields = ["document", "shown_customer", "answered_at", "shown_rates", "content_hash", "token"]

    @admin.display(description="customer")
    def shown_customer(self, answer: TaxAnswer) -> str:
        return link(answer.customer, answer.customer.code)

    @admin.display(description="lines")
    def lines(self, answer: TaxAnswer) -> int:
        return len(answer.rates)

    @admin.display(description="rate per line")
    def shown_rates(self, answer: TaxAnswer) -> str:
        by_position = sorted((int(key), percent(Decimal(rate))) for key, rate in answer.rates.items())
        table = format_html_join("", "<tr><th>{}</th><td>{}</td></tr>", by_position[:SHOWN_RATES])
        hidden = len(by_position) - SHOWN_RATES
        return format_html("<table>{}</table>{}", table, f"and {hidden} more" if hidden > 0 else "")
