"""The admin as a person sees it: wide and narrow, light and dark; and what they do with it."""

import pytest

from billing.models import CreditNote, Invoice, Item
from tests.browser.conftest import Visitor

pytestmark = pytest.mark.browser

PAGES = {
    "index": "",
    "waiting-items": "billing/item/?outcome=waiting",
    "waiting-messages": "outbox/message/?state__in=in_doubt,dead",
    "runs": "billing/run/",
    "run": "billing/run/{run}/change/",
    "items": "billing/item/",
    "item": "billing/item/{item}/change/",
    "item-preview": "billing/item/{item}/preview/",
    "invoices": "billing/invoice/",
    "invoice": "billing/invoice/{invoice}/change/",
    "invoice-void": "billing/invoice/{void}/change/",
    "invoice-mails": "billing/invoice/{invoice}/mails/",
    "invoice-history": "billing/invoice/{invoice}/history/",
    "lines": "billing/invoiceline/?invoice__id__exact={invoice}",
    "credit-notes": "billing/creditnote/",
    "customers": "billing/customer/",
    "customer": "billing/customer/{customer}/change/",
    "customer-add": "billing/customer/add/",
    "prices": "billing/price/",
    "price-add": "billing/price/add/",
    "usage": "billing/usageevent/",
    "tax-answers": "billing/taxanswer/",
    "series": "billing/series/",
    "messages": "outbox/message/",
    "message": "outbox/message/{message}/change/",
    "leases": "leases/heldlease/",
    "lease-records": "leases/leaserecord/",
    "headroom": "leases/leaserecord/headroom/",
    "fences": "leases/fence/",
    "incidents": "leases/incident/",
    "incident": "leases/incident/{incident}/change/",
    "queues": "leases/queue/",
    "interventions": "leases/intervention/",
    "log": "admin/logentry/",
}


@pytest.mark.parametrize(
    "visitor",
    [(1280, "light"), (1280, "dark"), (400, "light"), (400, "dark")],
    indirect=True,
    ids=lambda kind: f"{kind[0]}-{kind[1]}",
)
def test_every_page_is_readable(visitor: Visitor, billed: dict[str, int]) -> None:
    texts = {name: visitor.look_at(path.format(**billed), name) for name, path in PAGES.items()}
    assert visitor.complaints == []
    assert "Parked items: 1" in texts["index"]
    assert "JPY 5,509" in texts["invoices"]
    assert "KWD 5,508.956" in texts["invoices"]
    assert "all 30 lines" in texts["invoice"]
    assert "1 item" in texts["waiting-items"]
    assert "1 message" in texts["waiting-messages"]
    assert "without a price in EUR" in texts["item-preview"]


def test_invoice_is_voided_from_its_page(visitor: Visitor, billed: dict[str, int]) -> None:
    visitor.look_at(f"billing/invoice/{billed['invoice']}/change/", "before-void")
    visitor.page.click("button:text('Void')")
    assert "a credit note takes back the whole of it" in visitor.see("void-asks")
    visitor.page.fill("[name=reason]", "wrong price")
    visitor.page.click("input[value=Void]")
    visitor.page.wait_for_selector("ul.messagelist")
    text = visitor.see("voided")
    assert "taken back by CN-000002" in text
    assert "wrong price" in text
    assert visitor.complaints == []
    assert Invoice.objects.get(pk=billed["invoice"]).status == "void"
    assert CreditNote.objects.get(number=2).reason == "wrong price"


@pytest.mark.parametrize("visitor", [(400, "dark")], indirect=True)
def test_items_are_parked_from_the_list_on_a_narrow_screen(visitor: Visitor, billed: dict[str, int]) -> None:
    Item.objects.filter(outcome="parked").update(outcome="", reason="")
    visitor.look_at("billing/item/?outcome=open", "before-park")
    visitor.page.check("input[name=_selected_action]")
    visitor.page.select_option("select[name=action]", "park")
    visitor.page.click("button[name=index]")
    visitor.see("park-asks")
    visitor.page.click("input[value=Park]")  # the browser insists on a reason
    visitor.page.fill("[name=reason]", "disputed")
    visitor.page.click("input[value=Park]")
    visitor.page.wait_for_selector("ul.messagelist")
    assert "C00005 in run" in visitor.see("parked")
    assert visitor.complaints == []
    assert Item.objects.get(outcome="parked").reason == "disputed"
