from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.utils import timezone
from pytest_django import Settings

import outbox
from billing import runs
from billing import tax as tax_client
from billing.invoicing import invoice
from billing.models import Customer, Invoice, InvoiceLine, Item, Price, Series, UsageEvent
from billing.outcomes import Outcome
from billing.periods import Period
from billing.preview import preview
from billing.status import totals
from leases import current_lease, hold
from leases.errors import NotHeld
from outbox.models import Message
from tests.billing.conftest import TaxService
from tests.billing.making import make_customer, make_price, make_usage

MAY, JUNE = Period.parse("2026-05"), Period.parse("2026-06")

pytestmark = pytest.mark.usefixtures("tax")


@pytest.fixture
def customer(tax: TaxService) -> Customer:
    customer = make_customer("C1", timezone="Europe/Berlin")
    make_price("hours", "0.105")
    make_usage(customer, "1", "10", subject="vm-1")
    make_usage(customer, "2", "33", subject="vm-2")
    return customer


def mail() -> str:
    """Return the one mail that waits to be sent, as it will be."""
    payload: Any = Message.objects.get().payload
    return str(payload["raw"])


def sqlstate(error: DatabaseError) -> str:
    return str(getattr(error.__cause__, "sqlstate", ""))


def test_invoice_comes_whole(customer: Customer) -> None:
    outcome = invoice(customer.pk, MAY)
    made = Invoice.objects.get()
    assert outcome == Outcome.issued(made.pk)
    assert made.reference == "INV-000001"
    assert (made.net_minor, made.tax_minor, made.gross_minor) == (105 + 347, 86, 538)
    assert made.taxes == [{"category": "standard", "rate": "0.19", "base_minor": 452, "tax_minor": 86}]
    assert (made.currency, made.exponent, made.usage_count) == ("EUR", 2, 2)
    assert made.starts_at.isoformat() == "2026-04-30T22:00:00+00:00"
    assert made.customer_snapshot["name"] == "C1 Ltd"
    assert list(made.lines.order_by("position").values_list("subject", "net_minor", "tax_rate", "token")) == [
        ("vm-1", 105, Decimal("0.19"), made.token),
        ("vm-2", 347, Decimal("0.19"), made.token),
    ]
    assert not UsageEvent.objects.exclude(invoice=made).exists()


def test_email_is_a_row_of_the_same_commit(customer: Customer) -> None:
    invoice(customer.pk, MAY)
    message = Message.objects.get()
    assert (message.channel, message.dedupe_key) == ("email", f"invoice:{customer.pk}:usage:2026-05:v1")
    for part in (
        "To: c1@example.com",
        "Subject: Invoice INV-000001: EUR 5.38",
        "for the period 2026-05",
        "hours (2 lines)                                      EUR 4.52",
        "Tax 19 % on EUR 4.52                                 EUR 0.86",
        "Total                                                EUR 5.38",
    ):
        assert part in mail()


@pytest.mark.parametrize(("currency", "total"), [("JPY", "JPY 6"), ("KWD", "KWD 5.373"), ("USD", "USD 5.38")])
def test_email_shows_the_currencys_own_decimals(tax: TaxService, currency: str, total: str) -> None:
    # billing 77, 78
    customer = make_customer(currency=currency)
    make_usage(customer, "1", amount="4.515")
    invoice(customer.pk, MAY)
    assert f"Subject: Invoice INV-000001: {total}" in mail()


def test_second_call_finds_the_first_invoice(customer: Customer) -> None:
    first = invoice(customer.pk, MAY)
    make_usage(customer, "late")
    assert invoice(customer.pk, MAY) == Outcome.already_invoiced(first.invoice_id or 0)
    assert (Invoice.objects.count(), Message.objects.count()) == (1, 1)
    assert UsageEvent.objects.get(invoice=None).key == "late"


def test_nothing_to_invoice_is_skipped_with_its_reason(tax: TaxService) -> None:
    # billing 93: no usage and usage of nothing are two things
    idle, free = make_customer("idle"), make_customer("free")
    make_usage(free, "1", amount="0.004")
    assert invoice(idle.pk, MAY) == Outcome.skipped("no usage")
    assert invoice(free.pk, MAY) == Outcome.skipped("the usage adds up to zero")
    assert not tax.requests()
    assert not Invoice.objects.exists()


def test_total_that_only_tax_makes_negative_is_parked(tax: TaxService) -> None:
    customer = make_customer()
    make_usage(customer, "1", amount="100.00", tax_category="exempt")
    make_usage(customer, "2", amount="-99.00", metric="refunds")
    outcome = invoice(customer.pk, MAY)
    assert outcome == Outcome.parked(
        "the usage adds up to EUR -17.81, and an invoice cannot be negative; bill a longer period that outweighs it, "
        "or pay it back by other means"
    )


def test_net_of_nothing_with_tax_is_an_invoice(tax: TaxService) -> None:
    # billing 98
    customer = make_customer()
    make_usage(customer, "1", amount="-100.00", tax_category="exempt")
    make_usage(customer, "2", amount="100.00", metric="hours")
    invoice(customer.pk, MAY)
    made = Invoice.objects.get()
    assert (made.net_minor, made.tax_minor, made.gross_minor) == (0, 1900, 1900)


def test_charge_and_credit_that_cancel_out_are_skipped(tax: TaxService) -> None:
    customer = make_customer()
    make_usage(customer, "1", amount="100.00")
    make_usage(customer, "2", amount="-100.00", metric="refunds")
    assert invoice(customer.pk, MAY) == Outcome.skipped("the usage adds up to zero")


def test_one_open_run_issued_the_invoice_and_every_other_finds_it_there(customer: Customer) -> None:
    first, second = runs.plan(MAY), runs.plan(MAY)
    other = runs.plan(Period.parse("2026-06"))
    outcome = invoice(customer.pk, MAY)
    assert list(Item.objects.order_by("run").values_list("run", "outcome", "invoice", "attempts")) == [
        (first.pk, "already_invoiced", outcome.invoice_id, 1),
        (second.pk, "issued", outcome.invoice_id, 1),
        (other.pk, "", None, 0),
    ]
    assert [[total.invoices for total in totals(run)] for run in (first, second)] == [[], [1]]


def test_run_planned_while_another_one_issues_finds_the_invoice_already_there(
    customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [runs.plan(MAY)]
    ask = tax_client.rates

    def rates(*arguments: Any) -> dict[int, Decimal]:
        made.append(runs.plan(MAY))
        return ask(*arguments)

    monkeypatch.setattr(tax_client, "rates", rates)
    invoice(customer.pk, MAY)
    assert [Item.objects.get(run=run).outcome for run in made] == ["issued", "already_invoiced"]


def test_invoice_made_without_a_run_is_already_there_for_a_run_planned_meanwhile(
    customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = tax_client.rates

    def rates(*arguments: Any) -> dict[int, Decimal]:
        runs.plan(MAY)
        return ask(*arguments)

    monkeypatch.setattr(tax_client, "rates", rates)
    assert invoice(customer.pk, MAY).kind == "issued"
    assert Item.objects.get().outcome == "already_invoiced"


def test_amount_that_cannot_be_stored_parks_before_tax_is_asked_for(tax: TaxService) -> None:
    customer = make_customer()
    make_price("hours", "999999999999")
    usage = make_usage(customer, "1", "999999999999999999")
    outcome = invoice(customer.pk, MAY)
    assert outcome.kind == Item.Outcome.PARKED
    assert "too large to be meant; correct the usage or the price" in outcome.reason
    assert tax.requests() == []
    # What only the tax makes too large.
    UsageEvent.objects.filter(pk=usage.pk).update(quantity="92233.720368546774")
    outcome = invoice(customer.pk, MAY)
    assert (outcome.kind, "the total comes to" in outcome.reason) == (Item.Outcome.PARKED, True)


def test_error_at_the_last_step_leaves_nothing_and_a_retry_succeeds(
    customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # billing 37, 61: a half invoice is never seen, and no number is burned
    runs.plan(MAY)
    with monkeypatch.context() as broken:

        def publish(*arguments: object, **more: object) -> None:
            raise RuntimeError("no outbox today")

        broken.setattr(outbox, "publish", publish, raising=False)
        with pytest.raises(RuntimeError):
            invoice(customer.pk, MAY)
    assert not Invoice.objects.exists()
    assert not InvoiceLine.objects.exists()
    assert not UsageEvent.objects.exclude(invoice=None).exists()
    assert not Series.objects.exists()
    assert Item.objects.get().outcome == ""
    assert invoice(customer.pk, MAY).kind == Item.Outcome.ISSUED
    assert Invoice.objects.get().number == 1


def test_overlapping_period_is_parked_with_both_documents_named(customer: Customer) -> None:
    # outbox B42
    # billing 23, 24
    invoice(customer.pk, MAY)
    make_usage(customer, "3")
    period = Period.parse("2026-05-10/2026-06-10")
    (previewed,) = preview(period)
    outcome = invoice(customer.pk, period)
    assert outcome == Outcome.parked(
        "2026-05-10/2026-06-10 overlaps 2026-05, which invoice INV-000001 covers; void that invoice or bill the rest"
    )
    assert (previewed.outcome, previewed.reason) == (outcome.kind, outcome.reason)
    assert Invoice.objects.count() == 1


def test_address_that_cannot_be_mailed_parks_the_customer(customer: Customer) -> None:
    Customer.objects.update(email="no\nbody@example.com")
    outcome = invoice(customer.pk, MAY)
    assert outcome.kind == Item.Outcome.PARKED
    assert "correct the customer, then bill again" in outcome.reason
    assert not Invoice.objects.exists()


def test_sender_that_is_no_address_parks_nobody_and_says_which_setting_is_wrong(
    customer: Customer, settings: Settings
) -> None:
    runs.plan(MAY)
    settings.DEFAULT_FROM_EMAIL = "nobody"
    outcome = invoice(customer.pk, MAY)
    assert (outcome.kind, outcome.retry_in) == (Item.Outcome.FAILED, timedelta(seconds=5))
    assert outcome.reason.startswith("DEFAULT_FROM_EMAIL cannot be the sender of invoices")
    assert not Invoice.objects.exists()
    settings.DEFAULT_FROM_EMAIL = "billing@example.org"
    assert invoice(customer.pk, MAY).kind == Item.Outcome.ISSUED


def test_hours_that_a_move_of_the_zone_to_the_west_left_are_on_the_next_invoice(customer: Customer) -> None:
    gap = make_usage(customer, "gap", "7", subject="vm-1", at=datetime(2026, 6, 1, 1, tzinfo=UTC))
    make_usage(customer, "june", "5", subject="vm-1", at=datetime(2026, 6, 10, tzinfo=UTC))
    invoice(customer.pk, MAY)
    Customer.objects.update(timezone="America/New_York")
    may = Invoice.objects.get()
    assert invoice(customer.pk, JUNE).kind == Item.Outcome.ISSUED
    june = Invoice.objects.exclude(pk=may.pk).get()
    assert (june.starts_at, june.usage_count) == (may.ends_at, 2)
    gap.refresh_from_db()
    assert gap.invoice == june


def test_hours_that_a_move_to_the_east_gave_twice_are_on_the_first_invoice(customer: Customer) -> None:
    Customer.objects.update(timezone="America/New_York")
    make_usage(customer, "both", "7", subject="vm-1", at=datetime(2026, 6, 1, 1, tzinfo=UTC))
    invoice(customer.pk, MAY)
    Customer.objects.update(timezone="Europe/Berlin")
    assert Invoice.objects.get().usage_count == 3
    assert invoice(customer.pk, JUNE).reason == "no usage"


def test_issuing_makes_no_network_call_inside_its_transaction(
    customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # billing 50
    ask = tax_client._ask

    def asked(question: dict[str, Any]) -> dict[str, str]:
        assert not connection.in_atomic_block
        return ask(question)

    monkeypatch.setattr(tax_client, "_ask", asked)
    assert invoice(customer.pk, MAY).kind == Item.Outcome.ISSUED


def test_counter_is_locked_only_after_lines_and_claims(customer: Customer, monkeypatch: pytest.MonkeyPatch) -> None:
    # billing 59: what takes long is done before the number is taken
    statements: list[str] = []

    def note(execute: Any, sql: str, *more: Any) -> Any:
        statements.append(sql)
        return execute(sql, *more)

    with connection.execute_wrapper(note):
        invoice(customer.pk, MAY)

    def last(part: str) -> int:
        return max(n for n, sql in enumerate(statements) if part in sql)

    number = last("INSERT INTO billing_series")
    assert last('INSERT INTO "billing_invoiceline"') < last("UPDATE billing_usageevent") < number
    writes = [sql for sql in statements[number + 1 :] if sql.lstrip().startswith(("INSERT", "UPDATE"))]
    assert [sql.split()[:3] for sql in writes][:1] == [["UPDATE", '"billing_invoice"', "SET"]]
    assert sum("outbox_message" in sql for sql in statements[number + 1 :]) == 1


# What PostgreSQL itself refuses


def test_issued_invoice_does_not_change(customer: Customer) -> None:
    invoice(customer.pk, MAY)
    made = Invoice.objects.get()
    for statement in (
        "UPDATE billing_invoice SET gross_minor = gross_minor + 1, net_minor = net_minor + 1",
        "UPDATE billing_invoice SET number = 7",
        "UPDATE billing_invoice SET customer_snapshot = '{}'",
        "UPDATE billing_invoice SET status = 'void', voided_at = now(), cutoff_at = now()",
        "DELETE FROM billing_invoice",
        "UPDATE billing_invoiceline SET net_minor = 1",
        "DELETE FROM billing_invoiceline",
        "INSERT INTO billing_invoiceline (invoice_id, customer_id, position, metric, subject, quantity, net_minor, "
        "tax_category, tax_rate, usage_count, token) "
        f"VALUES ({made.pk}, {customer.pk}, 9, 'm', '', 1, 0, 'standard', NULL, 0, 1)",
    ):
        with hold(f"customer:{customer.pk}") as lease:
            with pytest.raises(DatabaseError) as raised, lease.transaction(), connection.cursor() as cursor:
                cursor.execute(statement)
            assert sqlstate(raised.value) == "BI001", statement


def test_invoice_without_number_or_with_other_lines_cannot_be_committed(customer: Customer) -> None:
    invoice(customer.pk, MAY)
    fields = {field.attname: getattr(Invoice.objects.get(), field.attname) for field in Invoice._meta.concrete_fields}
    fields |= {"id": None, "period": ("2026-07-01", "2026-08-01"), "number": None, "issued_at": None}
    for change in ({}, {"number": 99, "issued_at": timezone.now()}):
        with hold(f"customer:{customer.pk}"), pytest.raises(DatabaseError) as raised:
            Invoice(**{**fields, **change}).save(force_insert=True)
        assert sqlstate(raised.value) == "BI002"


def test_usage_cannot_be_claimed_for_another_customers_invoice(customer: Customer) -> None:
    invoice(customer.pk, MAY)
    other = make_customer("C2")
    usage = make_usage(other, "x")
    made = Invoice.objects.get()
    for wrong in (made.pk, made.pk + 1):
        with pytest.raises(IntegrityError, match="not there or is another customer's"):
            UsageEvent.objects.filter(pk=usage.pk).update(invoice=wrong)
        with pytest.raises(IntegrityError, match="not there or is another customer's"):
            UsageEvent.objects.create(
                customer=other, key=str(wrong), quantity=1, occurred_at=usage.occurred_at, invoice_id=wrong
            )


def test_claim_asks_about_the_invoice_once_and_not_per_row(customer: Customer) -> None:
    invoice(customer.pk, MAY)
    for key in ("late-1", "late-2", "late-3"):
        make_usage(customer, key)
    claim = "UPDATE billing_usageevent SET invoice_id = %s WHERE invoice_id IS NULL"
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + claim, [Invoice.objects.get().pk])
        (explained,) = cursor.fetchone()[0]
    calls = [(trigger["Trigger Name"], trigger["Calls"]) for trigger in explained["Triggers"]]
    assert calls == [("billing_usage_updated", 1)]


def test_invoice_cannot_be_written_without_the_lease(customer: Customer) -> None:
    invoice(customer.pk, MAY)
    made = Invoice.objects.get()
    with pytest.raises(NotHeld):
        made.save()
    with pytest.raises(NotHeld), transaction.atomic():
        Invoice.objects.update(status="void")
    with (
        pytest.raises(DatabaseError, match="not presented: customer:"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute("UPDATE billing_invoice SET status = 'void', voided_at = now()")


def test_price_that_was_used_stays_pinned_in_the_line(customer: Customer) -> None:
    # billing 22
    invoice(customer.pk, MAY)
    Price.objects.update(unit_price=Decimal(9))
    assert set(InvoiceLine.objects.values_list("unit_price", flat=True)) == {Decimal("0.105")}
    assert current_lease() is None
