"""What the fence adds to the transaction that issues an invoice.

    python -m benchmarks.issuing [--runs 5] [--customers 40] [--lines 30]

Uses the servers of DATABASE_URL and REDIS_URL; empties what REDIS_URL names, and works in a database of its own. The
other side runs the same code with nothing presented and the triggers switched off.
"""

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from decimal import Decimal

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

FENCED = ("billing_invoice", "billing_invoiceline", "billing_creditnote", "billing_taxanswer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--customers", type=int, default=40, help="invoices per measurement")
    parser.add_argument("--lines", type=int, default=30, help="lines of each invoice")
    arguments = parser.parse_args()

    from benchmarks.measuring import database_of_its_own

    with database_of_its_own():
        measure(arguments.runs, arguments.customers, arguments.lines)


def measure(runs: int, customers: int, lines: int) -> None:
    from benchmarks import measuring

    print(measuring.machine())
    print(f"medians over {runs} runs; ours, the other, ratio\n")
    months = months_with_usage(customers, lines, count=2 * runs)
    measuring.ratios(
        f"issuing transactions of {lines} lines a second, fenced / unfenced",
        lambda: issued_per_second(next(months)),
        lambda: unfenced_per_second(next(months)),
        at_least=0.9,
        runs=runs,
    )


def months_with_usage(customers: int, lines: int, *, count: int) -> Iterator[date]:
    """Make the customers, and then, for each month that is asked for, their usage in it."""
    from datetime import UTC, datetime

    from billing.models import UsageEvent
    from tests.billing.making import make_customer, make_price

    make_price()
    everybody = [make_customer(f"C{number}") for number in range(customers)]
    for number in range(count):
        month = date(2021 + number // 12, number % 12 + 1, 1)
        UsageEvent.objects.bulk_create(
            UsageEvent(
                source="bench",
                key=f"{month}-{customer.pk}-{line}",
                customer=customer,
                metric="hours",
                subject=f"server-{line}",
                quantity=Decimal(10),
                occurred_at=datetime(month.year, month.month, 15, tzinfo=UTC),
                digest="",
            )
            for customer in everybody
            for line in range(lines)
        )
        yield month


def unfenced_per_second(month: date) -> float:
    with no_fence():
        return issued_per_second(month)


def issued_per_second(month: date) -> float:
    """Invoice every customer for the month; only the issuing transactions count."""
    from billing import issuing, rating, runs
    from billing.models import Customer
    from billing.periods import Period
    from billing.slots import Slot
    from billing.totals import totals
    from leases import hold

    spent = 0.0
    everybody = list(Customer.objects.all())
    for customer in everybody:
        slot = Slot(customer.pk, Period.parse(f"{month:%Y-%m}"))
        with hold(slot.resource) as lease:
            cutoff_at, _ = runs.begin(lease, slot)
            rated = rating.rate(customer, slot.period, cutoff_at)
            rates = {line.position: Decimal("0.19") for line in rated.lines}
            total = totals((line.tax_category, rates[line.position], line.net_minor) for line in rated.lines)
            began = time.perf_counter()
            issuing.issue(lease, slot, 1, customer, rated, rates, total)
            spent += time.perf_counter() - began
    return len(everybody) / spent


@contextmanager
def no_fence() -> Iterator[None]:
    from django.db import connection

    from leases import fence

    def switch(how: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT tgrelid::regclass, tgname FROM pg_trigger WHERE tgname LIKE 'pgtrigger_fence%%'"
                " AND tgrelid::regclass::text = ANY(%s)",
                [list(FENCED)],
            )
            for table, trigger in cursor.fetchall():
                cursor.execute(f"ALTER TABLE {table} {how} TRIGGER {trigger}")

    present = fence.present
    switch("DISABLE")
    fence.present = lambda *args, **kwargs: None
    try:
        yield
    finally:
        fence.present = present
        switch("ENABLE")


if __name__ == "__main__":
    main()
