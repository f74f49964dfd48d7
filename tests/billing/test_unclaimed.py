"""What is on no invoice, and whom it is told to."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.core.management import call_command
from django.utils import timezone

from billing import runs
from billing.invoicing import invoice
from billing.models import Customer, Invoice, Item
from billing.parking import waiting_items
from billing.periods import Period
from tests.billing.conftest import TaxService
from tests.billing.making import make_customer, make_price, make_usage

MAY = Period.parse("2026-05")


def test_bill_tells_that_the_period_is_not_over_for_everybody(
    tax: TaxService, capsys: pytest.CaptureFixture[str]
) -> None:
    west, east = "Etc/GMT+12", "Pacific/Kiritimati"  # UTC-12 and UTC+14: some day is over in one only
    make_customer("west", timezone=west)
    make_customer("east", timezone=east)
    today = timezone.now().astimezone(ZoneInfo(west)).date()
    until = Period(today, today + timedelta(days=1)).bounds(west)[1]
    call_command("bill", f"{today}/{today + timedelta(days=1)}", "--dry-run")
    assert (
        f"is not over for 1 customer, for the last until {until:%Y-%m-%d %H:%M} UTC: what they use until then is on no"
        in capsys.readouterr().err
    )
    call_command("bill", f"{today}/{today + timedelta(days=1)}", "--dry-run", "--customer", "east")
    call_command("bill", f"{today - timedelta(days=1)}/{today}", "--dry-run")
    assert "is not over" not in capsys.readouterr().err


def test_item_of_a_mistaken_period_waits_for_nobody_once_the_rest_of_it_is_billed(tax: TaxService) -> None:
    customer = make_customer()
    make_price("hours", "0.10")
    make_usage(customer, "1")
    invoice(customer.pk, MAY)
    make_usage(customer, "2", at=datetime(2026, 6, 5, tzinfo=UTC))
    mistaken = Period.parse("2026-05-10/2026-06-10")
    runs.plan(mistaken)
    assert invoice(customer.pk, mistaken).kind == "parked"
    assert waiting_items().count() == 1
    invoice(customer.pk, Period.parse("2026-06"))
    assert waiting_items().count() == 0
    other = make_customer("C2")  # without usage, and parked by a person or after a failover
    runs.plan(MAY, codes=["C2"]).items.update(outcome="parked")
    assert [item.customer for item in waiting_items()] == [other]


def test_hours_that_the_next_invoice_takes_are_not_told(tax: TaxService, capsys: pytest.CaptureFixture[str]) -> None:
    moved = make_customer("moved", timezone="Europe/Berlin")
    make_price("hours", "0.10")
    make_usage(moved, "1")
    invoice(moved.pk, MAY)
    make_usage(moved, "2", at=datetime(2026, 6, 1, 1, tzinfo=UTC))
    Customer.objects.update(timezone="America/New_York")
    call_command("bill", "2026-06", "--dry-run")
    assert "no invoice" not in capsys.readouterr().err


def test_credit_that_outweighs_its_month_is_set_off_over_a_longer_period(tax: TaxService) -> None:
    customer = make_customer()
    make_usage(customer, "1", amount="-4.00")
    make_usage(customer, "2", amount="10.00", at=datetime(2026, 6, 5, tzinfo=UTC))
    runs.plan(MAY)
    assert invoice(customer.pk, MAY).kind == Item.Outcome.PARKED
    assert waiting_items().count() == 1
    assert invoice(customer.pk, Period.parse("2026-05-01/2026-07-01")).kind == Item.Outcome.ISSUED
    assert Invoice.objects.get().net_minor == 600
    assert waiting_items().count() == 0
