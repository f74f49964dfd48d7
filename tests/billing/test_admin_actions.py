"""What people do in the admin: each with a permission of its own, a page that asks, and an entry in the history."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection, connections
from django.db.models.functions import Now
from django.test import Client
from redis.exceptions import ConnectionError as RedisConnectionError

from billing import mailing, runs
from billing.actors import invoice_customer
from billing.invoicing import invoice
from billing.models import CreditNote, Customer, Invoice, Item
from billing.periods import Period
from leases import hold
from outbox.models import Message, State
from tests.billing.at_once import at_once
from tests.billing.conftest import TaxService
from tests.billing.making import make_customer, make_price, make_usage
from tests.billing.test_admin import html, staff

MAY = Period.parse("2026-05")


@pytest.fixture
def customer(tax: TaxService) -> Customer:
    """One customer whose usage has no price, so that the item parks."""
    customer = make_customer()
    make_usage(customer, "1", "10")
    runs.plan(MAY)
    return customer


@pytest.fixture
def issued(customer: Customer) -> Invoice:
    make_price("hours", "1.00")
    invoice(customer.pk, MAY)
    made: Invoice = Invoice.objects.get()
    return made


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The messages that the broker was given."""
    messages: list[Any] = []
    monkeypatch.setattr(invoice_customer, "send_with_options", lambda **options: messages.append(options["args"]))
    return messages


def act(client: Client, model: str, action: str, *rows: Any, **answers: Any) -> str:
    """Press the button on the page that asks, and return the page that follows."""
    data = {"action": action, "_selected_action": [row.pk for row in rows], "confirmed": "yes", **answers}
    return client.post(f"/admin/billing/{model}/", data, follow=True).content.decode()


@contextmanager
def frozen_counter(series: str) -> Iterator[None]:
    """Hold the number counter as a worker does that froze while it issued."""
    other = connections.create_connection("default")
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("INSERT INTO billing_series VALUES (%s, 1)", [series])
            yield
    finally:
        other.close()


def history() -> list[str]:
    return [entry.get_change_message() for entry in LogEntry.objects.order_by("pk")]


def test_action_asks_before_it_does_anything(issued: Invoice, admin_client: Client) -> None:
    response = admin_client.post("/admin/billing/invoice/", {"action": "void", "_selected_action": [issued.pk]})
    page = response.content.decode()
    assert "a credit note takes back the whole of it" in page
    assert "reads the reason in it" in page
    assert "INV-000001" in page
    assert Invoice.objects.get().status == "issued"
    assert "This field is required." in act(admin_client, "invoice", "void", issued, reason="  ")
    assert Invoice.objects.get().status == "issued"
    assert history() == []


def test_void_takes_the_lease_and_leaves_an_entry(issued: Invoice, admin_client: Client) -> None:
    page = act(admin_client, "invoice", "void", issued, reason="wrong <price>")
    assert "taken back by CN-000001" in page
    voided = Invoice.objects.get()
    assert (voided.status, voided.void_reason) == ("void", "wrong <price>")
    assert voided.token > issued.token
    assert history() == ["Void: wrong <price>"]
    assert "Void: wrong &lt;price&gt;" in html(admin_client, f"invoice/{issued.pk}/history/")
    page = html(admin_client, f"invoice/{issued.pk}/change/")
    assert "wrong &lt;price&gt;" in page
    assert "CN-000001" in page


def test_nobody_is_said_to_be_gone_of_a_list_that_is_selected_as_a_whole(
    customer: Customer, admin_client: Client
) -> None:
    """All rows of the list: more than those of its page, which the browser names."""
    make_customer("other")
    runs.plan(MAY)
    data = {"action": "park", "_selected_action": [Item.objects.order_by("pk")[0].pk], "select_across": "1"}
    page = admin_client.post("/admin/billing/item/", data).content.decode()
    assert "not invoiced for the period until" in page
    assert "Nothing is done with" not in page


def test_second_void_is_said_to_have_done_nothing(issued: Invoice, admin_client: Client) -> None:
    act(admin_client, "invoice", "void", issued, reason="wrong price")
    assert "it was taken back by CN-000001 before" in act(admin_client, "invoice", "void", issued, reason="disputed")
    assert history() == ["Void: wrong price", "Void: disputed", "Not done: it was taken back by CN-000001 before"]
    assert CreditNote.objects.get().reason == "wrong price"


def test_void_that_the_database_breaks_off_is_written_down_as_such(
    issued: Invoice, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("billing.transactions.TRIES", 1)
    with frozen_counter("CN"):
        page = act(admin_client, "invoice", "void", issued, reason="wrong")
    assert "broken off, look before you try again (canceling statement due to lock timeout)" in page
    assert history() == ["Void: wrong", "Broken off: canceling statement due to lock timeout"]
    assert Invoice.objects.get().status == "issued"


def test_selected_row_that_left_the_list_meanwhile_is_said_to_be_left_alone(
    customer: Customer, admin_client: Client
) -> None:
    data = {"action": "retry", "_selected_action": [Item.objects.get().pk], "confirmed": "yes", "reason": "r"}
    for more in ({}, {"from_page": "yes"}):
        page = admin_client.post("/admin/billing/item/?outcome=failed", data | more, follow=True).content.decode()
        assert "Nothing is done with 1 of the selected" in page
    assert history() == []


def test_void_from_the_page_of_the_invoice_returns_to_it(issued: Invoice, admin_client: Client) -> None:
    page = html(admin_client, f"invoice/{issued.pk}/change/")
    assert f'name="_selected_action" value="{issued.pk}"' in page
    page = act(admin_client, "invoice", "void", issued, reason="wrong", from_page="yes")
    assert "change-form" in page
    assert "taken back by CN-000001" in page


def test_void_under_a_running_job_is_refused_and_said_so(issued: Invoice, admin_client: Client) -> None:
    with hold(f"customer:{issued.customer_id}"):
        # Another request, that is: another thread.
        [page] = at_once(1, lambda _: act(admin_client, "invoice", "void", issued, reason="no"))
    assert "is leased by" in page
    assert Invoice.objects.get().status == "issued"
    first, second = history()
    assert first == "Void: no"
    assert second.startswith("Not done: customer:")


def test_actions_take_leases_under_atomic_requests(issued: Invoice, admin_client: Client) -> None:
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    try:
        act(admin_client, "invoice", "void", issued, reason="wrong")
    finally:
        connection.settings_dict["ATOMIC_REQUESTS"] = False
    assert Invoice.objects.get().status == "void"


@pytest.mark.parametrize(
    ("model", "action", "permission"),
    [
        ("invoice", "void", "void_invoice"),
        ("invoice", "send_again", "send_again_invoice"),
        ("item", "retry", "retry_item"),
        ("item", "park", "park_item"),
    ],
)
def test_each_action_needs_its_permission(issued: Invoice, model: str, action: str, permission: str) -> None:
    if action == "park":
        Item.objects.update(outcome="", invoice=None)  # what is done is not offered to be parked
    row = issued if model == "invoice" else Item.objects.get()
    for client, allowed in ((staff(f"view_{model}"), False), (staff(f"view_{model}", permission), True)):
        assert (f'<option value="{action}">' in html(client, f"{model}/")) == allowed
        assert (f'name="action" value="{action}"' in html(client, f"{model}/{row.pk}/change/")) == allowed
    act(staff(f"view_{model}", "view_customer", "view_run"), model, action, row, reason="no", to="a@b.example", copy=2)
    assert history() == []


def test_previews_need_their_permission(issued: Invoice) -> None:
    client = staff("view_invoice", "view_item")
    for path in (f"invoice/{issued.pk}/mails/", f"item/{Item.objects.get().pk}/preview/"):
        assert client.get(f"/admin/billing/{path}").status_code == 403
    client = staff("preview_invoice", "preview_item", "view_invoice")
    assert "Total" in html(client, f"invoice/{issued.pk}/mails/")
    assert "is invoiced" not in html(client, f"invoice/{issued.pk}/mails/")
    assert "INV-000001" in html(client, f"item/{Item.objects.get().pk}/preview/")


def test_parked_item_is_tried_again(customer: Customer, admin_client: Client, sent: list[Any]) -> None:
    invoice(customer.pk, MAY)
    item = Item.objects.get()
    assert item.outcome == "parked"
    make_price("hours", "1.00")
    page = act(admin_client, "item", "retry", item, reason="price imported")
    assert "given to the workers" in page
    assert sent == [(customer.pk, "2026-05")]
    item = Item.objects.get()
    assert (item.outcome, item.reason, item.attempts) == ("", "", 0)
    assert history() == ["Try again now: price imported"]
    invoice_customer(*sent[0])
    assert Item.objects.get().outcome == "issued"


def test_item_that_is_tried_again_without_a_broker_is_open_and_said_to_be(
    customer: Customer, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    invoice(customer.pk, MAY)

    def send(**options: Any) -> None:
        raise RedisConnectionError("refused")

    monkeypatch.setattr(invoice_customer, "send_with_options", send)
    page = act(admin_client, "item", "retry", Item.objects.get(), reason="price imported")
    assert "open again; the broker does not answer (refused); the rescuer will enqueue" in page
    assert history() == ["Try again now: price imported"]
    assert Item.objects.get().outcome == ""


def test_voided_invoice_is_issued_again_by_trying_its_item_again(
    issued: Invoice, admin_client: Client, sent: list[Any]
) -> None:
    item = Item.objects.get()
    page = act(admin_client, "item", "retry", item, reason="too early")
    assert "it is issued; void INV-000001 first" in page
    act(admin_client, "invoice", "void", issued, reason="wrong price")
    act(admin_client, "item", "retry", item, reason="price corrected")
    invoice_customer(*sent[0])
    assert list(Invoice.objects.order_by("pk").values_list("status", "version")) == [("void", 1), ("issued", 2)]
    assert Item.objects.get().invoice == Invoice.objects.get(version=2)


def test_skipped_item_is_not_tried_again(tax: TaxService, admin_client: Client, sent: list[Any]) -> None:
    customer = make_customer()
    runs.plan(MAY)
    invoice(customer.pk, MAY)
    assert "bill the period again" in act(admin_client, "item", "retry", Item.objects.get(), reason="usage came")
    assert sent == []


def test_parked_item_is_not_invoiced_by_a_message_that_was_queued_before(
    customer: Customer, admin_client: Client
) -> None:
    make_price("hours", "1.00")
    assert 'value="park"' in html(admin_client, f"item/{Item.objects.get().pk}/change/")
    act(admin_client, "item", "park", Item.objects.get(), reason="disputed")
    item = Item.objects.get()
    assert (item.outcome, item.reason) == ("parked", "disputed")
    assert 'value="park"' not in html(admin_client, f"item/{item.pk}/change/")
    invoice_customer(customer.pk, "2026-05")
    assert Invoice.objects.count() == 0
    assert "only what is still to be done can be parked" in act(admin_client, "item", "park", item, reason="again")
    # A new run is a decision to bill.
    runs.plan(MAY)
    invoice_customer(customer.pk, "2026-05")
    assert Invoice.objects.count() == 1


def test_too_many_rows_at_once_are_refused(issued: Invoice, admin_client: Client) -> None:
    other = make_customer("C2")
    make_usage(other, "2", "10")
    invoice(other.pk, MAY)
    page = act(admin_client, "invoice", "void", *Invoice.objects.all(), reason="both")
    assert "Select 1 at most for this action." in page
    assert Invoice.objects.filter(status="void").count() == 0


def test_mail_is_sent_again_once_however_often_the_button_is_pressed(issued: Invoice, admin_client: Client) -> None:
    page = act(admin_client, "invoice", "send_again", issued, reason="lost", to="c1@example.com", copy=2)
    assert "the last mail about it is pending" in page
    Message.objects.update(state=State.SENT, sent_at=Now())
    asked = admin_client.post("/admin/billing/invoice/", {"action": "send_again", "_selected_action": [issued.pk]})
    assert 'value="c1@example.com"' in asked.content.decode()
    copy = asked.context["answers"]["copy"].value()
    for _ in range(2):
        act(admin_client, "invoice", "send_again", issued, reason="lost", to="new@example.com", copy=copy)
    page = act(admin_client, "invoice", "send_again", issued, reason="x", to="else@example.com", copy=copy)
    assert "copy 2 was sent meanwhile, to another address" in page
    first, again = Message.objects.order_by("pk")
    assert again.dedupe_key == f"{first.dedupe_key}:copy2"
    assert again.state == "pending"
    assert mailing.read(again) == {**(mailing.read(first) or {}), "to": "new@example.com"}
    page = html(admin_client, f"invoice/{issued.pk}/mails/")
    assert "new@example.com" in page
    assert "sent; copy 2 pending" in html(admin_client, "invoice/")


def test_void_cancels_a_copy_that_was_not_sent_yet(issued: Invoice, admin_client: Client) -> None:
    Message.objects.update(state=State.SENT, sent_at=Now())
    mailing.send_again(issued.pk, to="new@example.com", copy=2)
    act(admin_client, "invoice", "void", issued, reason="wrong")
    assert list(Message.objects.order_by("pk").values_list("state", flat=True)) == ["sent", "cancelled", "pending"]
    assert Message.objects.latest("pk").dedupe_key.startswith("credit:")
    assert "is void" in act(admin_client, "invoice", "send_again", issued, reason="lost", to="a@example.com", copy=3)


@pytest.mark.parametrize(("state", "action"), [("in_doubt", "send_again"), ("dead", "requeue")])
def test_mail_of_a_void_invoice_is_not_sent_by_a_decision_about_the_message(
    state: str, action: str, issued: Invoice, admin_client: Client
) -> None:
    first = Message.objects.get()
    Message.objects.update(state=State.DEAD)
    copy = mailing.send_again(issued.pk, to="new@example.com", copy=2)
    alive = Message.objects.filter(pk__in=[first.pk, copy.pk])
    alive.update(state=State.SENDING, claim=1, claimed_until=Now())
    act(admin_client, "invoice", "void", issued, reason="wrong price")
    alive.update(state=state, claimed_until=None)
    data = {"action": action, "_selected_action": [first.pk, copy.pk], "confirmed": "yes", "reason": "customer called"}
    page = admin_client.post("/admin/outbox/message/", data, follow=True).content.decode()
    assert ": 0 of 2." in page
    assert page.count("INV-000001 is void, and its mail is not sent any more") == 2
    assert set(alive.values_list("state", flat=True)) == {state}
    note_mail = Message.objects.exclude(pk__in=[first.pk, copy.pk])
    note_mail.update(state=state)
    data["_selected_action"] = [note_mail.get().pk]
    assert ": 1 of 1." in admin_client.post("/admin/outbox/message/", data, follow=True).content.decode()


def test_preview_shows_what_would_be_issued_and_writes_nothing(customer: Customer, admin_client: Client) -> None:
    item = Item.objects.get()
    assert "without a price in EUR" in html(admin_client, f"item/{item.pk}/preview/")
    make_price("hours", "1.00")
    page = html(admin_client, f"item/{item.pk}/preview/")
    for text in ("EUR 10.00", "Dear C1 Ltd,", "c1@example.com", "hours"):
        assert text in page
    assert Invoice.objects.count() == Message.objects.count() == 0
    assert CreditNote.objects.count() == 0
