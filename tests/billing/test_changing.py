"""What changes while the tax service is asked: it is rated again, and the invoice shows it as it is in the end."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.utils import timezone

from billing import mailing, runs
from billing import tax as tax_client
from billing.invoicing import invoice
from billing.models import Customer, Invoice, Item, Series, UsageEvent
from billing.periods import Period
from leases import Lease
from outbox.models import Message
from tests.billing.conftest import TaxService
from tests.billing.making import make_customer, make_price, make_usage

MAY = Period.parse("2026-05")


@pytest.fixture
def customer(tax: TaxService) -> Customer:
    customer = make_customer("C1", timezone="Europe/Berlin")
    make_price("hours", "0.105")
    make_usage(customer, "1", "10", subject="vm-1")
    make_usage(customer, "2", "33", subject="vm-2")
    return customer


def test_usage_that_changes_while_taxed_is_rated_again(customer: Customer, monkeypatch: pytest.MonkeyPatch) -> None:
    cutoff_at = timezone.now() + timedelta(minutes=1)
    monkeypatch.setattr(runs, "begin", lambda lease, slot: (cutoff_at, 1))
    ask = tax_client.rates

    def rates(*arguments: Any) -> dict[int, Decimal]:
        if not UsageEvent.objects.filter(key="meanwhile").exists():
            make_usage(customer, "meanwhile", "7", subject="vm-3")
        return ask(*arguments)

    monkeypatch.setattr(tax_client, "rates", rates)
    invoice(customer.pk, MAY)
    made = Invoice.objects.get()
    assert made.usage_count == 3 == made.lines.count()
    assert made.net_minor == 105 + 347 + 74
    assert Series.objects.get().next_number == 2


def test_customer_who_is_corrected_while_taxed_is_invoiced_as_corrected(
    customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for = []
    ask = tax_client.rates

    def rates(lease: Lease, customer: Customer, *more: Any) -> dict[int, Decimal]:
        asked_for.append(customer.country)
        answer = ask(lease, customer, *more)
        Customer.objects.update(email="right@example.com", country="FR")
        return answer

    monkeypatch.setattr(tax_client, "rates", rates)
    invoice(customer.pk, MAY)
    made = Invoice.objects.get()
    assert (made.customer_snapshot["email"], made.customer_snapshot["country"]) == ("right@example.com", "FR")
    assert asked_for == ["", "FR"]
    assert (made.version, made.number) == (1, 1)
    assert (mailing.read(Message.objects.get()) or {})["to"] == "right@example.com"


def test_usage_that_never_rests_fails_for_now(customer: Customer, monkeypatch: pytest.MonkeyPatch) -> None:
    cutoff_at = timezone.now() + timedelta(minutes=1)
    monkeypatch.setattr(runs, "begin", lambda lease, slot: (cutoff_at, 1))
    ask = tax_client.rates

    def rates(*arguments: Any) -> dict[int, Decimal]:
        make_usage(customer, f"meanwhile-{UsageEvent.objects.count()}")
        return ask(*arguments)

    monkeypatch.setattr(tax_client, "rates", rates)
    outcome = invoice(customer.pk, MAY)
    assert outcome.kind == Item.Outcome.FAILED
    assert outcome.reason == "the usage or the customer changed during each of 3 attempts; it will be tried again"
    assert not Invoice.objects.exists()
