"""Six callers invoice one customer at the same moment (billing 11): one live invoice, and all six get it."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import IntegrityError, connection, transaction

from billing import invoicing, tax
from billing.invoicing import invoice
from billing.models import Customer, Invoice, Item, Series, UsageEvent
from billing.periods import Period
from leases import fenced
from outbox.models import Message
from tests.billing.at_once import at_once
from tests.billing.conftest import TaxService
from tests.billing.making import make_customer, make_price, make_usage

MAY = Period.parse("2026-05")
CALLERS = 6
FENCED_TABLES = ("billing_invoice", "billing_invoiceline", "billing_taxanswer", "billing_creditnote")


@pytest.fixture
def customer(tax: TaxService) -> Customer:
    customer = make_customer()
    make_price("hours", "0.10")
    for n in range(5):
        make_usage(customer, str(n), subject=f"vm-{n}")
    return customer


@pytest.fixture
def all_rated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody issue before all six have seen that there is no invoice."""
    everybody = threading.Barrier(CALLERS)
    ask = tax.rates

    def rates(*arguments: Any) -> Any:
        answers = ask(*arguments)
        everybody.wait(30)
        return answers

    monkeypatch.setattr(tax, "rates", rates)


class NoLease:
    """What `hold()` gives when lease and fence are switched off: anybody may do anything."""

    using, resource = "default", "-"

    def check(self) -> None: ...

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with transaction.atomic():
            yield


@pytest.fixture
def no_lease_no_fence(monkeypatch: pytest.MonkeyPatch, transactional_db: None) -> Iterator[None]:
    """Switch both off, in this test's database only."""

    @contextmanager
    def hold(*_: object, **__: object) -> Iterator[NoLease]:
        yield NoLease()

    monkeypatch.setattr(invoicing, "hold", hold)

    @contextmanager
    def writing(rows: list[fenced.FencedModel], using: str, **_: object) -> Iterator[None]:
        for row in rows:
            row.token = 0
        yield

    @contextmanager
    def under_all_leases(self: object) -> Iterator[list[object]]:
        yield []

    monkeypatch.setattr(fenced, "_writing", writing)
    monkeypatch.setattr(fenced.FencedQuerySet, "_under_all_leases", under_all_leases)
    triggers = [(table, name) for table in FENCED_TABLES for name in fence_triggers(table)]
    switch(triggers, "DISABLE")
    yield
    switch(triggers, "ENABLE")


def fence_triggers(table: str) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT tgname FROM pg_trigger WHERE tgrelid = %s::regclass AND tgname LIKE '%%fence%%'", [table]
        )
        names = [str(name) for (name,) in cursor.fetchall()]
    assert len(names) == 3
    return names


def switch(triggers: list[tuple[str, str]], how: str) -> None:
    with connection.cursor() as cursor:
        for table, name in triggers:
            cursor.execute(f'ALTER TABLE {table} {how} TRIGGER "{name}"')


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the constraints that refused somebody."""
    names: list[str] = []
    taken = invoicing._taken

    def note(lease: Any, slot: Any, error: IntegrityError) -> Any:
        assert isinstance(error.__cause__, psycopg.errors.UniqueViolation)
        names.append(str(error.__cause__.diag.constraint_name))
        return taken(lease, slot, error)

    monkeypatch.setattr(invoicing, "_taken", note)
    return names


@pytest.fixture
def slot_constraint_alone(transactional_db: None) -> Iterator[None]:
    """Take away the other two constraints that would refuse a second invoice here."""
    names = ["billing_invoice_no_overlap", "billing_invoice_one_per_version"]
    with connection.cursor() as cursor:
        cursor.execute("SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = ANY(%s)", [names])
        definitions = cursor.fetchall()
        assert len(definitions) == len(names)
        for name, _ in definitions:
            cursor.execute(f"ALTER TABLE billing_invoice DROP CONSTRAINT {name}")
    yield
    with connection.cursor() as cursor:
        for name, definition in definitions:
            cursor.execute(f"ALTER TABLE billing_invoice ADD CONSTRAINT {name} {definition}")


def check_one_invoice(customer: Customer) -> None:
    made = Invoice.objects.get()
    assert (made.number, made.lines.count(), made.usage_count) == (1, 5, 5)
    assert set(UsageEvent.objects.values_list("invoice", flat=True)) == {made.pk}
    assert Series.objects.get().next_number == 2
    assert Message.objects.count() == 1


def test_six_callers_get_the_one_invoice(customer: Customer) -> None:
    # outbox B43
    outcomes = at_once(CALLERS, lambda _: invoice(customer.pk, MAY, wait=timedelta(seconds=30)))
    assert Counter(outcome.kind for outcome in outcomes) == {
        Item.Outcome.ISSUED: 1,
        Item.Outcome.ALREADY_INVOICED: CALLERS - 1,
    }
    assert {outcome.invoice_id for outcome in outcomes} == {Invoice.objects.get().pk}
    check_one_invoice(customer)


@pytest.mark.usefixtures("no_lease_no_fence", "slot_constraint_alone", "all_rated")
def test_six_callers_meet_the_constraint_with_everything_else_switched_off(
    customer: Customer, refusals: list[str]
) -> None:
    # outbox B39
    outcomes = at_once(CALLERS, lambda _: invoice(customer.pk, MAY))
    assert Counter(outcome.kind for outcome in outcomes) == {
        Item.Outcome.ISSUED: 1,
        Item.Outcome.ALREADY_INVOICED: CALLERS - 1,
    }
    assert {outcome.invoice_id for outcome in outcomes} == {Invoice.objects.get().pk}
    assert refusals == ["billing_invoice_one_live_per_slot"] * (CALLERS - 1)
    check_one_invoice(customer)


@pytest.mark.django_db(transaction=True)
def test_six_callers_that_read_then_insert_without_a_constraint_make_six_invoices() -> None:
    # outbox B39
    """Red: what the incident's code did, and what the constraint is for."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE naive_invoice (id bigserial, customer_id bigint, period text)")
    try:
        nobody_there = threading.Barrier(CALLERS)

        def naive(_: int) -> None:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM naive_invoice WHERE customer_id = 1 AND period = '2026-05'")
                if cursor.fetchone() == (0,):
                    nobody_there.wait(30)
                    cursor.execute("INSERT INTO naive_invoice (customer_id, period) VALUES (1, '2026-05')")

        at_once(CALLERS, naive)
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM naive_invoice")
            assert cursor.fetchone() == (CALLERS,)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE naive_invoice")
