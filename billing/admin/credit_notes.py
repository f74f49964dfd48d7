from django.contrib import admin

from billing.admin.amounts import amount
from billing.admin.inspecting import Inspector, link
from billing.admin.searching import NumberSearch
from billing.models import CreditNote


@admin.register(CreditNote)
class CreditNoteAdmin(NumberSearch, Inspector):
    list_display = ["reference", "shown_customer", "shown_invoice", "net", "tax", "gross", "reason", "issued_at"]
    list_select_related = ["customer", "invoice"]
    date_hierarchy = "issued_at"
    ordering = ["-issued_at"]
    fields = [
        "reference", "shown_customer", "shown_invoice", "issued_at", "reason", "net", "tax", "gross", "token",
    ]  # fmt: skip

    net = staticmethod(amount("net_minor", "net", currency_of="invoice"))
    tax = staticmethod(amount("tax_minor", "tax", currency_of="invoice"))
    gross = staticmethod(amount("gross_minor", "gross", currency_of="invoice"))

    @admin.display(description="customer")
    def shown_customer(self, note: CreditNote) -> str:
        return link(note.customer, note.customer.code)

    @admin.display(description="takes back")
    def shown_invoice(self, note: CreditNote) -> str:
        return link(note.invoice)
