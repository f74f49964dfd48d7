from datetime import timedelta

import pytest
from django.db import OperationalError
from django.db.models.functions import Now
from dramatiq.middleware import CurrentMessage

from billing import actors, runs
from billing.actors import invoice_customer
from billing.crediting import void
from billing.models import Customer, Invoice, Item
from billing.periods import Period
from leases.errors import LeaseBusy
from tests.billing.conftest import TaxService
from tests.billing.making import make_customer, make_usage

MAY = Period.parse("2026-05")


@pytest.fixture
def customer(tax: TaxService) -> Customer:
    customer = make_customer()
    make_usage(customer, "1", amount="1.00")
    runs.plan(MAY)
    return customer


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """What the actor sends instead of sending it."""
    messages: list[dict[str, object]] = []
    monkeypatch.setattr(invoice_customer, "send_with_options", lambda **options: messages.append(options))
    return messages


def come_due() -> None:
    """Let the time of the next attempt come."""
    Item.objects.filter(retry_at__isnull=False).update(retry_at=Now())


def deliver(monkeypatch: pytest.MonkeyPatch, customer: Customer, options: dict[str, object]) -> None:
    """Have the actor work on a message that it sent with these options."""
    message = invoice_customer.message_with_options(args=(customer.pk, "2026-05"), attempt=options["attempt"])
    monkeypatch.setattr(CurrentMessage, "get_current_message", lambda: message)
    invoice_customer(customer.pk, "2026-05")


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("billing.invoicing.rating.rate", fail)


def test_unforeseen_error_fails_the_item_and_parks_it_when_it_stays(
    customer: Customer, sent: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, ZeroDivisionError("by what?"))
    delays = []
    for attempt in range(1, 6):
        invoice_customer(customer.pk, "2026-05")
        item = Item.objects.get()
        assert (item.attempts, item.reason) == (attempt, "ZeroDivisionError: by what?")
        delays.append(sent[-1]["delay"] if item.outcome == "failed" else None)
        come_due()
    assert delays == [timedelta(seconds=5), timedelta(seconds=10), timedelta(seconds=20), timedelta(seconds=40), None]
    assert Item.objects.get().outcome == "parked"
    assert sent[0]["args"] == (customer.pk, "2026-05")


def test_failed_item_is_cured_by_its_next_attempt(
    customer: Customer, sent: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        failing(broken, OperationalError("the server closed the connection"))
        invoice_customer(customer.pk, "2026-05")
    assert Item.objects.get().outcome == "failed"
    come_due()
    invoice_customer(customer.pk, "2026-05")
    item = Item.objects.get()
    assert (item.outcome, item.reason, item.retry_at, item.attempts) == ("issued", "", None, 2)


def test_database_that_is_away_never_parks_anybody(
    customer: Customer, sent: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, OperationalError("the server closed the connection"))
    for _ in range(8):
        invoice_customer(customer.pk, "2026-05")
        come_due()
    item = Item.objects.get()
    assert (item.outcome, item.attempts, len(sent)) == ("failed", 8, 8)


def test_failed_item_has_one_chain_of_retries_however_many_messages_come(
    customer: Customer, sent: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, OperationalError("the server closed the connection"))
    for _ in range(5):  # delivered twice, and enqueued again by rescuers
        invoice_customer(customer.pk, "2026-05")
    assert [message["attempt"] for message in sent] == [2]
    come_due()
    for _ in range(5):
        invoice_customer(customer.pk, "2026-05")
    assert [message["attempt"] for message in sent] == [2, 3]
    assert Item.objects.get().attempts == 2


def test_retry_that_comes_before_its_time_by_another_clock_is_the_next_attempt_once(
    customer: Customer, sent: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        failing(broken, OperationalError("the server closed the connection"))
        invoice_customer(customer.pk, "2026-05")
        deliver(monkeypatch, customer, sent[0])
        deliver(monkeypatch, customer, sent[0])
    assert [message["attempt"] for message in sent] == [2, 3]
    deliver(monkeypatch, customer, sent[1])
    assert Item.objects.get().outcome == "issued"


def test_new_run_does_not_wait_for_the_retry_of_an_older_one(
    customer: Customer, sent: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        failing(broken, OperationalError("the server closed the connection"))
        invoice_customer(customer.pk, "2026-05")
    runs.plan(MAY)
    invoice_customer(customer.pk, "2026-05")
    assert list(Item.objects.order_by("run").values_list("outcome", flat=True)) == ["already_invoiced", "issued"]


def test_busy_customer_is_no_failure(
    customer: Customer, sent: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object, **__: object) -> None:
        raise LeaseBusy("customer:1", holder="another", retry_after=timedelta(seconds=1))

    monkeypatch.setattr(actors, "invoice", busy)
    with pytest.raises(LeaseBusy):  # outside a worker; inside one the message goes back to the queue
        invoice_customer(customer.pk, "2026-05")
    item = Item.objects.get()
    assert (item.outcome, item.attempts) == ("", 0)
    assert not sent


def test_failure_without_an_item_is_raised_for_the_broker_to_retry(
    customer: Customer, sent: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    Item.objects.all().delete()
    failing(monkeypatch, ZeroDivisionError("by what?"))
    with pytest.raises(ZeroDivisionError):
        invoice_customer(customer.pk, "2026-05")
    assert not sent


def test_message_that_comes_again_after_a_void_does_not_bill_the_slot_anew(
    customer: Customer, sent: list[dict[str, object]]
) -> None:
    # The broker delivers twice, and the rescuer sends messages too many; only a person or a run bills what is void.
    invoice_customer(customer.pk, "2026-05")
    void(Item.objects.get().invoice_id or 0, "wrong price")
    invoice_customer(customer.pk, "2026-05")
    assert [invoice.status for invoice in Invoice.objects.all()] == ["void"]
    runs.plan(MAY)
    invoice_customer(customer.pk, "2026-05")
    assert [(i.version, i.status) for i in Invoice.objects.order_by("pk")] == [(1, "void"), (2, "issued")]


def test_message_that_comes_again_after_nothing_was_to_invoice_bills_nothing_later(
    tax: TaxService, sent: list[dict[str, object]]
) -> None:
    customer = make_customer()
    runs.plan(MAY)
    invoice_customer(customer.pk, "2026-05")
    make_usage(customer, "late", amount="1.00")
    invoice_customer(customer.pk, "2026-05")
    assert Item.objects.get().outcome == "skipped"
    assert not Invoice.objects.exists()
