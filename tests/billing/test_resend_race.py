"""Sending a mail again by decision, against a void of its invoice at the same moment: on two connections, both orders.

Both lock the invoice first and the message second, so neither can wait for the other while it holds what that wants.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection, connections

from billing import crediting, mailing
from billing.invoicing import invoice
from billing.models import CreditNote, Customer, Invoice
from billing.periods import Period
from outbox import signals
from outbox.decisions import Action, decide
from outbox.errors import DecisionRefused
from outbox.models import Message, State
from tests.billing.conftest import TaxService
from tests.billing.making import make_customer, make_usage
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture
def in_doubt(tax: TaxService) -> Message:
    """The mail about an invoice, handed over with an unknown outcome."""
    customer: Customer = make_customer()
    make_usage(customer, "1", amount="10.00")
    invoice(customer.pk, Period.parse("2026-05"))
    Message.objects.update(state=State.IN_DOUBT, claimed_until=None)
    return Message.objects.get()


def on_its_own_connection(pool: ThreadPoolExecutor, work: Callable[[], object]) -> "Future[object]":
    def run() -> object:
        try:
            return work()
        finally:
            connections.close_all()

    return pool.submit(run)


def blocked() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(BLOCKED)
        return bool(cursor.fetchone()[0])


def send_again(message: Message) -> object:
    return decide(Action.SEND_AGAIN, message.pk, reason="customer has nothing", by="eve")


def void() -> object:
    return crediting.void(Invoice.objects.get().pk, "wrong price", wait=timedelta(seconds=20))


def test_void_that_meets_a_decision_to_send_again_waits_for_it_and_cancels_the_mail(
    in_doubt: Message,
) -> None:
    decided, go_on = threading.Event(), threading.Event()

    def hold_up(**about: object) -> None:  # after the receiver of billing, in the decision's transaction
        decided.set()
        assert go_on.wait(20)

    signals.resending.connect(hold_up)
    try:
        with ThreadPoolExecutor(2) as pool:
            first = on_its_own_connection(pool, lambda: send_again(in_doubt))
            assert decided.wait(20)
            second = on_its_own_connection(pool, void)
            wait_until(blocked, 20, "the void did not wait for the decision")
            go_on.set()
            first.result(30)
            second.result(30)
    finally:
        go_on.set()
        signals.resending.disconnect(hold_up)
    in_doubt.refresh_from_db()
    assert in_doubt.state == State.CANCELLED
    assert Invoice.objects.get().status == Invoice.Status.VOID
    # It may have arrived the first time: the customer hears of the void.
    assert Message.objects.exclude(pk=in_doubt.pk).get().dedupe_key.startswith("credit:")


def test_decision_to_send_again_that_meets_a_void_waits_for_it_and_is_refused(
    in_doubt: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    voided, go_on = threading.Event(), threading.Event()
    cancel_unsent = mailing.cancel_unsent

    def hold_up(*args: Invoice, using: str) -> bool:  # the invoice is void, its mails are cancelled; not committed
        unsent = cancel_unsent(*args, using=using)
        voided.set()
        assert go_on.wait(20)
        return unsent

    monkeypatch.setattr(mailing, "cancel_unsent", hold_up)
    with ThreadPoolExecutor(2) as pool:
        first = on_its_own_connection(pool, void)
        assert voided.wait(20)
        second = on_its_own_connection(pool, lambda: send_again(in_doubt))
        wait_until(blocked, 20, "the decision did not wait for the void")
        go_on.set()
        first.result(30)
        with pytest.raises(DecisionRefused, match="is void"):
            second.result(30)
    in_doubt.refresh_from_db()
    assert in_doubt.state == State.IN_DOUBT
    assert CreditNote.objects.count() == 1
