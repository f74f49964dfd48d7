from datetime import timedelta

import pytest
from django.db.models.functions import Now

from billing import mailing
from billing.crediting import void
from billing.invoicing import invoice
from billing.models import CreditNote, Customer, Invoice, Item, Series, UsageEvent
from billing.outcomes import Outcome
from billing.periods import Period
from outbox.decisions import Action, decide
from outbox.models import Message, State
from tests.billing.at_once import at_once
from tests.billing.conftest import TaxService
from tests.billing.making import make_customer, make_usage

MAY = Period.parse("2026-05")
ROUNDS = 10


@pytest.fixture
def customer(tax: TaxService) -> Customer:
    customer = make_customer()
    make_usage(customer, "1", amount="10.00")
    return customer


def test_void_takes_back_the_whole_invoice_and_its_unsent_email(customer: Customer) -> None:
    made = invoice(customer.pk, MAY)
    note = void(made.invoice_id or 0, "wrong price")
    voided = Invoice.objects.get()
    assert (voided.status, voided.void_reason, voided.number) == ("void", "wrong price", 1)
    assert (note.reference, note.net_minor, note.tax_minor, note.gross_minor) == ("CN-000001", 1000, 190, 1190)
    assert note.invoice_id == voided.pk
    assert UsageEvent.objects.get().invoice_id is None
    assert [message.state for message in Message.objects.all()] == [State.CANCELLED]


def test_credit_note_is_mailed_when_the_invoice_was(customer: Customer) -> None:
    made = invoice(customer.pk, MAY)
    Message.objects.update(state=State.SENT, sent_at=Now())
    Customer.objects.update(email="moved@example.com")
    void(made.invoice_id or 0, "wrong price")
    mail = mailing.read(Message.objects.latest("pk"))
    assert mail
    assert (mail["to"], "Reason: wrong price" in mail["text"]) == ("moved@example.com", True)
    assert list(Message.objects.order_by("pk").values_list("dedupe_key", "state")) == [
        (f"invoice:{customer.pk}:usage:2026-05:v1", State.SENT),
        (f"credit:{customer.pk}:usage:2026-05:v1", State.PENDING),
    ]


def test_slot_is_voided_and_billed_again_ten_times(customer: Customer) -> None:
    # outbox B39
    # billing 49, 65: void is a status, it releases the usage once, and the slot is free for the next version
    for version in range(1, ROUNDS + 1):
        made = invoice(customer.pk, MAY)
        assert made.kind == Item.Outcome.ISSUED
        assert invoice(customer.pk, MAY) == Outcome.already_invoiced(made.invoice_id or 0)
        assert UsageEvent.objects.get().invoice_id == made.invoice_id
        assert Invoice.objects.get(pk=made.invoice_id).version == version
        void(made.invoice_id or 0, f"round {version}")
    assert list(Invoice.objects.order_by("number").values_list("number", "version", "status")) == [
        (n, n, "void") for n in range(1, ROUNDS + 1)
    ]
    assert list(CreditNote.objects.order_by("number").values_list("number", flat=True)) == list(range(1, ROUNDS + 1))
    assert dict(Series.objects.values_list("name", "next_number")) == {"INV": ROUNDS + 1, "CN": ROUNDS + 1}
    keys = [f"invoice:{customer.pk}:usage:2026-05:v{version}" for version in range(1, ROUNDS + 1)]
    assert list(Message.objects.order_by("pk").values_list("dedupe_key", flat=True)) == keys


def test_eight_voids_at_once_make_one_credit_note(customer: Customer) -> None:
    # billing 97
    made = invoice(customer.pk, MAY)
    notes = at_once(8, lambda n: void(made.invoice_id or 0, f"caller {n}", wait=timedelta(seconds=30)))
    assert {note.pk for note in notes} == {CreditNote.objects.get().pk}
    assert Series.objects.get(name="CN").next_number == 2


def test_void_of_nothing_is_an_error(tax: TaxService) -> None:
    with pytest.raises(Invoice.DoesNotExist):
        void(1, "no such invoice")


def test_late_usage_is_billed_with_the_reissue(customer: Customer) -> None:
    made = invoice(customer.pk, MAY)
    make_usage(customer, "late", amount="5.00")
    void(made.invoice_id or 0, "late usage")
    assert Invoice.objects.get(pk=invoice(customer.pk, MAY).invoice_id).net_minor == 1500


def test_credit_note_is_mailed_when_the_invoice_may_have_been_though_a_person_stopped_its_mail(
    customer: Customer,
) -> None:
    made = invoice(customer.pk, MAY)
    Message.objects.update(state=State.IN_DOUBT)
    decide(Action.CANCEL, Message.objects.get().pk, reason="not again", by="anna")
    void(made.invoice_id or 0, "wrong price")
    assert Message.objects.filter(dedupe_key__startswith="credit:", state=State.PENDING).count() == 1
