"""FOCUS cost in, invoices out: what is billed is what was taken, to half a minor unit per line.

The expectation is computed from the file alone, with csv and fractions, by none of the code under test.
"""

import csv
import io
from collections import defaultdict
from fractions import Fraction
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db.models import Count, Sum

from billing.invoicing import invoice
from billing.models import Customer, Invoice, InvoiceLine, UsageEvent
from billing.periods import Period
from tests.billing.conftest import TaxService
from tests.billing.making import make_customer
from tests.servers.needs import SHARED_DATA

FOCUS_SMALL = Path(__file__).parent / "focus_small.csv"
HALF = Fraction(1, 2)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as stream:
        return list(csv.DictReader(stream))


def import_focus(path: Path) -> int:
    """Import and return the exit code."""
    try:
        call_command("import_usage", str(path), "--format", "focus", stdout=io.StringIO(), stderr=io.StringIO())
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


def check_billed(expected: dict[str, Fraction], month: str) -> None:
    """Bill everybody and compare each invoice, and the sum of all, with the exact cost per customer."""
    for customer in Customer.objects.all():
        invoice(customer.pk, Period.parse(month))
    billed = {code: (net, lines) for code, net, lines in Invoice.objects.filter(period__startswith=f"{month}-01")
              .values_list("customer__code", "net_minor").annotate(lines=Count("lines"))}  # fmt: skip
    assert billed
    for code, (net_minor, lines) in billed.items():
        assert abs(net_minor - expected[code] * 100) <= HALF * lines
    for code in set(expected) - set(billed):  # nothing to invoice: every line rounds to nothing
        metrics = UsageEvent.objects.filter(customer__code=code).values("metric").distinct().count()
        assert abs(expected[code] * 100) <= HALF * metrics
    total = sum(net_minor for net_minor, _ in billed.values())
    lines = sum(lines for _, lines in billed.values())
    assert abs(total - sum(expected[code] for code in billed) * 100) <= HALF * lines
    assert (
        InvoiceLine.objects.filter(invoice__period__startswith=f"{month}-01").aggregate(sum=Sum("net_minor"))["sum"]
        == total
    )


def test_small_file_is_billed_to_the_half_cent_per_line(tax: TaxService) -> None:
    for code in ("acct-1", "acct-2"):
        make_customer(code, currency="USD")
    assert import_focus(FOCUS_SMALL) == 3
    # By hand: rows 2-5 of acct-1, rows 6-8 of acct-2; row 9 is October's.
    exact = {
        "acct-1": Fraction("0.0000008") + Fraction("0.00499999999") + Fraction("3.3345") + Fraction("-2.6137"),
        "acct-2": Fraction("12.005") - Fraction("0.00000000603") + Fraction("0.000000000000001"),
    }
    check_billed(exact, "2024-09")
    assert dict(Invoice.objects.values_list("customer__code", "net_minor")) == {
        "acct-1": 1 + 72,  # 0.00500079999 rounds up to a cent, 0.7208 to 72 cents
        "acct-2": 1201,  # 12.005 is half a cent, and goes up
    }


def test_october_is_another_invoice(tax: TaxService) -> None:
    make_customer("acct-2", currency="USD")
    import_focus(FOCUS_SMALL)
    check_billed({"acct-2": Fraction(7)}, "2024-10")


@pytest.mark.shared_data
def test_thousand_real_rows_are_billed_to_the_half_cent_per_line(tax: TaxService) -> None:
    path = SHARED_DATA / "focus_sample.csv"
    rows = rows_of(path)
    for code in sorted({row["SubAccountId"] for row in rows}):
        make_customer(code, currency="USD")
    assert import_focus(path) == 0
    assert UsageEvent.objects.count() == len(rows) == 1000

    exact: dict[str, Fraction] = defaultdict(Fraction)
    for row in rows:
        assert row["ChargePeriodStart"].startswith("2024-09")
        exact[row["SubAccountId"]] += Fraction(row["BilledCost"])
    assert round(sum(exact.values()), 2) == Fraction("20.52")
    negative = {code for code, cost in exact.items() if cost * 100 <= -HALF}
    check_billed({code: cost for code, cost in exact.items() if code not in negative}, "2024-09")
    # Who is owed money is not invoiced, and does not disappear either: the usage is there, unclaimed.
    assert not Invoice.objects.filter(customer__code__in=negative).exists()
    assert not UsageEvent.objects.filter(customer__code__in=negative).exclude(invoice=None).exists()
