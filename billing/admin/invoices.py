from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.timezone import localdate

from billing import crediting, mailing, money
from billing.admin.amounts import amount
from billing.admin.confirming import Question, ReasonForm, confirmed
from billing.admin.inspecting import Inspector, link, list_link
from billing.admin.lines import SHOWN_LINES, LinesInline, percent
from billing.admin.searching import NumberSearch
from billing.errors import AlreadyVoid
from billing.models import CreditNote, Invoice, InvoiceLine, UsageEvent
from billing.slots import as_period
from billing.wording import counted


class SendAgainForm(ReasonForm):
    """To whom; and as which copy, so that pressing the button twice sends one."""

    to = forms.EmailField(max_length=320, help_text="The customer's address today.")
    copy = forms.IntegerField(widget=forms.HiddenInput, min_value=2)

    def __init__(self, *args: Any, rows: Sequence[Any], **kwargs: Any) -> None:
        super().__init__(*args, rows=rows, **kwargs)
        if rows:
            self.fields["to"].initial = rows[0].customer.email
            self.fields["copy"].initial = mailing.next_copy(rows[0])


@confirmed(
    Question(
        "Void",
        "The invoice becomes void for good and a credit note takes back the whole of it. A mail that was not sent yet "
        "is cancelled; otherwise the customer gets one about the credit note, and reads the reason in it. The usage is "
        "free to be invoiced again: try the item again, or bill the period.",
        "Void",
    ),
    permission="void",
    one_at_a_time=True,
)
def void(invoice: Invoice, answers: dict[str, Any]) -> str:
    if invoice.status == Invoice.Status.VOID:
        raise AlreadyVoid(str(CreditNote.objects.get(invoice=invoice)))
    return f"taken back by {crediting.void(invoice.pk, answers['reason'])}"


@confirmed(
    Question(
        "Send the mail again",
        "The customer gets the mail about this invoice once more. The invoice stays as it is.",
        "Send it again",
    ),
    permission="send_again",
    form=SendAgainForm,
    one_at_a_time=True,
)
def send_again(invoice: Invoice, answers: dict[str, Any]) -> str:
    mailing.send_again(invoice.pk, to=answers["to"], copy=answers["copy"])
    return f"sent again to {answers['to']}"


@admin.register(Invoice)
class InvoiceAdmin(NumberSearch, Inspector):
    list_display = [
        "reference", "shown_customer", "shown_period", "gross", "status", "mail", "issued_on",
    ]  # fmt: skip
    list_filter = ["status"]
    list_select_related = ["customer"]
    date_hierarchy = "issued_at"
    ordering = ["-issued_at"]
    inlines = [LinesInline]
    actions = [send_again, void]
    fieldsets = [
        (None, {"fields": ["reference", "shown_customer", "shown_period", "status", "issued_at", "mail"]}),
        ("Amounts", {"fields": ["net", "taxes_table", "tax", "gross", "all_lines"]}),
        (
            "As issued",
            {"fields": ["issued_to", "usage", "starts_at", "ends_at", "cutoff_at", "version", "token"]},
        ),
        ("Taken back", {"fields": ["shown_credit_note", "void_reason", "voided_at"]}),
    ]

    net = staticmethod(amount("net_minor", "net"))
    tax = staticmethod(amount("tax_minor", "tax"))
    gross = staticmethod(amount("gross_minor", "gross"))

    def has_void_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("billing.void_invoice")

    def has_send_again_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("billing.send_again_invoice")

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.mails_view)
        return [path("<int:invoice_id>/mails/", view, name="billing_invoice_mails"), *super().get_urls()]

    def offers(self, action: str, object_id: str) -> bool:
        return not Invoice.objects.filter(pk=object_id, status=Invoice.Status.VOID).exists()

    def row_links(self, request: HttpRequest, object_id: str) -> list[tuple[str, str]]:
        if not request.user.has_perm("billing.preview_invoice"):
            return []
        return [(reverse("admin:billing_invoice_mails", args=[object_id]), "Mails")]

    def mails_view(self, request: HttpRequest, invoice_id: int) -> HttpResponse:
        """Show the mails about an invoice as they were or will be sent."""
        if not request.user.has_perm("billing.preview_invoice"):
            raise PermissionDenied
        invoice = get_object_or_404(Invoice, pk=invoice_id)
        messages = mailing.messages_of([invoice])[invoice.pk]
        context = {
            **self.admin_site.each_context(request),
            "title": f"Mails about {invoice.reference}",
            "opts": self.opts,
            "invoice": invoice,
            "mails": [(link(message, message.dedupe_key), message, mailing.read(message)) for message in messages],
        }
        return TemplateResponse(request, "admin/billing/invoice/mails.html", context)

    def look_up(self, rows: Sequence[Any]) -> None:
        messages = mailing.messages_of(rows)
        for invoice in rows:
            invoice.mail_messages = messages[invoice.pk]

    def get_fieldsets(self, request: HttpRequest, obj: Invoice | None = None) -> Any:
        is_void = obj is not None and obj.status == Invoice.Status.VOID
        return self.fieldsets if is_void else self.fieldsets[:-1]

    @admin.display(description="customer")
    def shown_customer(self, invoice: Invoice) -> str:
        return link(invoice.customer, invoice.customer.code)

    @admin.display(description="period")
    def shown_period(self, invoice: Invoice) -> str:
        return str(as_period(invoice.period))

    @admin.display(description="issued")
    def issued_on(self, invoice: Invoice) -> date:
        assert invoice.issued_at is not None  # noqa: S101 - numbered and dated together
        return localdate(invoice.issued_at)

    @admin.display(description="mail", empty_value="none")
    def mail(self, invoice: Any) -> str | None:
        if not hasattr(invoice, "mail_messages"):
            self.look_up([invoice])
        # Each, since a copy that was cancelled must not hide the mail that went out before it.
        states = [str(message.get_state_display()) for message in invoice.mail_messages]
        copies = (f"copy {number} {state}" for number, state in enumerate(states[1:], start=2))
        return "; ".join([*states[:1], *copies]) or None

    @admin.display(description="taxes")
    def taxes_table(self, invoice: Invoice) -> str:
        rows = [
            (
                f"{tax['category']}, {percent(Decimal(tax['rate']))}",
                money.format_minor(tax["base_minor"], invoice.currency),
                money.format_minor(tax["tax_minor"], invoice.currency),
            )
            for tax in invoice.taxes
        ]
        return format_html_join("\n", "<div>{} on {}: {}</div>", rows) or "-"

    @admin.display(description="lines")
    def all_lines(self, invoice: Invoice) -> str:
        last = invoice.lines.order_by("-position").values_list("position", flat=True).first() or 0
        text = f"all {last:,} lines" if last > SHOWN_LINES else counted(last, "line")
        return list_link(InvoiceLine, text, invoice__id__exact=invoice.pk)

    @admin.display(description="usage events")
    def usage(self, invoice: Invoice) -> str:
        text = f"{invoice.usage_count:,}"
        if invoice.status == Invoice.Status.VOID:  # it was released
            return text
        return list_link(UsageEvent, text, invoice__id__exact=invoice.pk)

    @admin.display(description="issued to")
    def issued_to(self, invoice: Invoice) -> str:
        rows = [(name, value) for name, value in invoice.customer_snapshot.items() if value]
        return format_html("<div>{}</div>", format_html_join("", "<div>{}: {}</div>", rows))

    @admin.display(description="credit note")
    def shown_credit_note(self, invoice: Invoice) -> str:
        return link(CreditNote.objects.filter(invoice=invoice).first())
