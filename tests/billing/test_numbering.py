import threading
from collections import Counter
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now
from django.utils import timezone

from billing import crediting
from billing.invoicing import invoice
from billing.models import CreditNote, Customer, Invoice, Series
from billing.numbering import take_number
from billing.periods import Period
from tests.billing.at_once import at_once
from tests.billing.conftest import TaxService
from tests.billing.making import make_customer, make_usage

THREADS = 8
EACH = 125
MAY = Period.parse("2026-05")

pytestmark = pytest.mark.django_db(transaction=True)


class Broken(Exception):
    pass


def test_numbers_of_eight_threads_have_no_gap_and_no_repeat_though_every_third_rolls_back() -> None:
    # billing 51-58, 61
    def work(thread: int) -> list[int]:
        kept = []
        for n in range(EACH):
            try:
                with transaction.atomic():
                    number = take_number("A", using="default")
                    if (thread + n) % 3 == 0:
                        raise Broken
            except Broken:
                continue
            kept.append(number)
        return kept

    numbers = [number for kept in at_once(THREADS, work) for number in kept]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert THREADS * EACH / 2 < len(numbers) < THREADS * EACH
    assert Series.objects.get().next_number == len(numbers) + 1


def test_series_do_not_wait_for_each_other() -> None:
    with transaction.atomic():
        assert take_number("A", using="default") == 1
        assert at_once(1, lambda _: take_number("B", using="default")) == [1]


def test_numbers_read_as_maximum_plus_one_repeat() -> None:
    """Red: how most of the public bugs number (billing 51-55)."""
    everybody = threading.Barrier(THREADS)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE naive_number (number bigint)")
    try:

        def naive(_: int) -> int:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SELECT coalesce(max(number), 0) + 1 FROM naive_number")
                number = int(cursor.fetchone()[0])
                everybody.wait(30)
                cursor.execute("INSERT INTO naive_number VALUES (%s)", [number])
                return number

        assert Counter(at_once(THREADS, naive)) == {1: THREADS}
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE naive_number")


def test_document_is_dated_no_earlier_than_the_one_numbered_before_it(
    tax: TaxService, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The clock steps back, or that of a promoted standby is behind.
    first, second = make_customer("C1"), make_customer("C2")
    for customer in (first, second):
        make_usage(customer, customer.code, amount="10.00")
    with monkeypatch.context() as ahead:
        ahead.setattr("billing.numbering.Now", lambda: Now() + timedelta(hours=1))
        crediting.void(invoice(first.pk, MAY).invoice_id or 0, "wrong")
    crediting.void(invoice(second.pk, MAY).invoice_id or 0, "wrong")
    for documents in (Invoice.objects, CreditNote.objects):
        before, after = documents.order_by("number").values_list("issued_at", flat=True)
        assert timezone.now() + timedelta(minutes=50) < before == after


def test_document_after_skipped_numbers_is_dated_no_earlier_than_the_last_one(
    tax: TaxService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a failover: the numbers are raised beyond those that are lost, and the promoted clock is behind."""
    for code in ("C1", "C2"):
        make_usage(make_customer(code), code, amount="10.00")
    first, second = Customer.objects.order_by("code")
    with monkeypatch.context() as ahead:
        ahead.setattr("billing.numbering.Now", lambda: Now() + timedelta(hours=1))
        invoice(first.pk, MAY)
    Series.objects.update(next_number=43)
    invoice(second.pk, MAY)
    (_, before), (number, after) = Invoice.objects.order_by("number").values_list("number", "issued_at")
    assert number == 43
    assert before == after


def test_invoices_issued_at_once_are_numbered_in_the_order_of_their_dates(tax: TaxService) -> None:
    # billing 54, 63: two runs at the same time over many customers
    customers = [make_customer(f"C{n}") for n in range(THREADS * 5)]
    for customer in customers:
        make_usage(customer, customer.code, amount="1.00")

    def work(thread: int) -> None:
        for customer in customers[thread::THREADS]:
            invoice(customer.pk, MAY)

    at_once(THREADS, work)
    issued = list(Invoice.objects.order_by("number").values_list("number", "issued_at"))
    assert [number for number, _ in issued] == list(range(1, len(customers) + 1))
    dates = [at for _, at in issued if at]
    assert dates == sorted(dates)
    assert len(dates) == len(customers)
