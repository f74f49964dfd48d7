"""The admin's lists and pages: what they show, to whom, and that no row costs a query of its own."""

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from billing import runs
from billing.invoicing import invoice
from billing.models import Customer, Invoice, InvoiceLine, Item, Price, Run, TaxAnswer, UsageEvent
from billing.periods import Period
from leases.models import Incident
from tests.billing.conftest import TaxService
from tests.billing.making import make_customer, make_price, make_usage

MAY = Period.parse("2026-05")
LISTS = [
    "creditnote", "customer", "invoice", "invoiceline", "item", "price", "run", "series", "taxanswer", "usageevent",
]  # fmt: skip
WRITTEN_BY_THE_SYSTEM = [name for name in LISTS if name not in ("customer", "price")]


def bill(count: int, *, first: int = 1) -> None:
    """Issue an invoice in yen to each of `count` new customers, in a run of its own."""
    customers = [make_customer(f"C{number}", currency="JPY") for number in range(first, first + count)]
    for customer in customers:
        make_usage(customer, customer.code, "12345", subject="<b>host</b>")
    runs.plan(MAY, codes=[customer.code for customer in customers])
    for customer in customers:
        invoice(customer.pk, MAY)


def html(client: Client, path: str) -> str:
    response = client.get(f"/admin/billing/{path}")
    assert response.status_code == 200
    return response.content.decode()


def staff(*codenames: str) -> Client:
    """Return the client of a person who has just these permissions."""
    user = User.objects.create_user(f"staff-{len(codenames)}", password="x", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="billing", codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def invoices(tax: TaxService) -> None:
    make_price("hours", "1", currency="JPY")
    bill(2)


@pytest.mark.parametrize("name", LISTS)
def test_more_rows_cost_no_more_queries(invoices: None, admin_client: Client, name: str) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            html(admin_client, f"{name}/")
        return len(captured)

    queries()  # the first request reads content types
    few = queries()
    bill(3, first=10)
    make_price("gigabytes", "2", currency="JPY")
    assert queries() == few


def test_sums_are_in_the_currency_with_its_decimals(invoices: None, admin_client: Client) -> None:
    assert "JPY 14,691" in html(admin_client, "invoice/")
    pk = invoice(Customer.objects.get(code="C1").pk, MAY).invoice_id
    page = html(admin_client, f"invoice/{pk}/change/")
    for text in ("JPY 12,345", "JPY 14,691", "19 %", "2026-05", "INV-000001", "c1@example.com", "1 line"):
        assert text in page
    assert "{&#x27;" not in page, "raw JSON"
    assert "<b>host</b>" not in page
    assert "&lt;b&gt;host" in page


def test_run_shows_its_progress_and_leads_to_its_items(invoices: None, admin_client: Client) -> None:
    run = Run.objects.get()
    Item.objects.create(run=run, customer=make_customer("C9"), outcome="parked", reason="no price")
    Item.objects.create(run=run, customer=make_customer("C8"))
    for path in ("run/", f"run/{run.pk}/change/"):
        page = html(admin_client, path)
        for text in ("3 of 4", "2 issued", "1 parked", "1 open", f"?run={run.pk}&amp;outcome=parked"):
            assert text in page
    page = html(admin_client, f"run/{run.pk}/change/")
    assert "2 invoices: net JPY 24,690, tax JPY 4,692, gross JPY 29,382" in page
    assert "no price" in page
    page = html(admin_client, f"item/?run={run.pk}&outcome=parked")
    assert "1 item" in page
    assert "no price" in page
    assert "1 item" in html(admin_client, "item/?outcome=open")


def test_invoice_is_found_by_number_or_customer(invoices: None, admin_client: Client) -> None:
    assert "1 invoice" in html(admin_client, "invoice/?q=INV-000002")
    assert "2 invoices" in html(admin_client, "invoice/?q=C")
    assert "0 invoices" in html(admin_client, "invoice/?q=INV-000003")


def test_customer_is_found_by_code_or_any_part_of_name_or_address(invoices: None, admin_client: Client) -> None:
    assert "2 customers" in html(admin_client, "customer/?q=C")
    assert "1 customer" in html(admin_client, "customer/?q=1+ltd")
    assert "1 customer" in html(admin_client, "customer/?q=2@EXAMPLE")


def test_dates_lead_to_the_years_and_months_that_have_rows(admin_client: Client, db: None) -> None:
    for year, month in ((2024, 1), (2024, 12), (2026, 5)):
        make_price(f"m{month}", valid_from=datetime(year, month, 1, tzinfo=UTC))
    page = html(admin_client, "price/")
    assert "?valid_from__year=2024" in page
    assert "?valid_from__year=2025" not in page
    page = html(admin_client, "price/?valid_from__year=2024")
    assert "2 prices" in page
    assert [f"valid_from__month={month}&" in page for month in (1, 11, 12)] == [True, False, True]
    page = html(admin_client, "price/?valid_from__year=2024&valid_from__month=12")
    assert "valid_from__day=1&" in page


@pytest.mark.parametrize("name", WRITTEN_BY_THE_SYSTEM)
def test_what_the_system_writes_cannot_be_changed_by_hand(invoices: None, admin_client: Client, name: str) -> None:
    model: Any = {
        "taxanswer": TaxAnswer,
        "usageevent": UsageEvent,
        "item": Item,
        "run": Run,
        "invoiceline": InvoiceLine,
    }
    assert admin_client.get(f"/admin/billing/{name}/add/").status_code == 403
    if name in model:
        pk = model[name].objects.latest("pk").pk
        assert admin_client.post(f"/admin/billing/{name}/{pk}/change/", {}).status_code == 403
        assert admin_client.post(f"/admin/billing/{name}/{pk}/delete/", {"post": "yes"}).status_code == 403
        assert 'name="_save' not in html(admin_client, f"{name}/{pk}/change/")


def test_customer_form_is_as_strict_as_the_import(admin_client: Client, db: None) -> None:
    values = {
        "code": "C1", "name": "One", "email": "one@example.com", "currency": "EUR", "timezone": "Europe/Berlin",
        "country": "DE", "status": "active",
    }  # fmt: skip
    wrong = {"currency": "XXQ", "timezone": "Berlin", "country": "de"}
    response = admin_client.post("/admin/billing/customer/add/", values | wrong)
    assert set(response.context["adminform"].form.errors) == set(wrong)
    admin_client.post("/admin/billing/customer/add/", values)
    customer = Customer.objects.get(code="C1")
    admin_client.post(f"/admin/billing/customer/{customer.pk}/change/", values | {"name": "Uno", "code": "other"})
    customer.refresh_from_db()
    assert (customer.code, customer.name) == ("C1", "Uno")
    assert admin_client.post(f"/admin/billing/customer/{customer.pk}/delete/", {"post": "yes"}).status_code == 403


def test_price_can_be_corrected_until_it_takes_effect(admin_client: Client, db: None) -> None:
    past = make_price("hours", "1")
    assert "add one with a later valid from" in html(admin_client, f"price/{past.pk}/change/")
    coming = make_price("hours", "2", valid_from=datetime(date.today().year + 2, 1, 1, tzinfo=UTC))
    assert admin_client.post(f"/admin/billing/price/{past.pk}/change/", {}).status_code == 403
    values = {
        "metric": "hours", "currency": "EUR", "unit_price": "3.5", "tax_category": "standard",
        "valid_from_0": "2099-01-01", "valid_from_1": "00:00:00",
    }  # fmt: skip
    assert "In use" not in html(admin_client, f"price/{coming.pk}/change/")
    admin_client.post(f"/admin/billing/price/{coming.pk}/change/", values)
    assert Price.objects.get(pk=coming.pk).unit_price == Decimal("3.5")
    response = admin_client.post("/admin/billing/price/add/", values | {"unit_price": "-1", "metric": "x"})
    assert set(response.context["adminform"].form.errors) == {"unit_price"}


def test_customer_leads_to_its_lease_and_the_overview_to_the_incidents_of_late(admin_client: Client, db: None) -> None:
    customer = make_customer("ACME")
    for days, token in ((1, 1), (8, 2)):
        Incident.objects.create(
            resource=f"customer:{customer.pk}", token=token, detector="watcher", fate="unknown", pid=1,
            seen_at=timezone.now() - timedelta(days=days),
        )  # fmt: skip
    Incident.objects.create(
        resource=f"customer:{customer.pk}0", token=3, detector="watcher", fate="crashed", pid=1, seen_at=timezone.now()
    )
    about = html(admin_client, f"customer/{customer.pk}/change/")
    assert f"customer:{customer.pk} ·" in about
    (found,) = re.findall(r'href="(/admin/leases/incident/[^"]+)"', about)
    assert "2 incidents" in admin_client.get(found.replace("&amp;", "&")).content.decode()
    overview = admin_client.get("/admin/").content.decode()
    (found,) = re.findall(r'href="(/admin/leases/incident/\?[^"]+)"><strong>Incidents of the last 7 days: 1<', overview)
    assert "1 incident" in admin_client.get(found.replace("&amp;", "&")).content.decode()
    incident = f"/admin/leases/incident/{Incident.objects.order_by('pk')[0].pk}/change/"
    about = f'<a href="/admin/billing/customer/{customer.pk}/change/">Customer</a>'
    assert about in admin_client.get(incident).content.decode()


def test_list_is_for_those_who_may_view_it(invoices: None) -> None:
    client = staff("view_invoice", "view_customer")
    html(client, "invoice/")
    assert client.get("/admin/billing/item/").status_code == 403


def test_items_are_found_by_the_date_of_their_run_and_usage_by_when_it_was_received(
    tax: TaxService, admin_client: Client
) -> None:
    customer = make_customer("A")
    for month in (3, 5):
        run = runs.plan(Period.parse("2026-05"))
        Run.objects.filter(pk=run.pk).update(created_at=f"2025-0{month}-07T12:00:00Z")
        made = make_usage(customer, f"k{month}", amount="1.00")
        UsageEvent.objects.filter(pk=made.pk).update(received_at=f"2025-0{month}-07T12:00:00Z")
    for page, name in (("item", "run__created_at"), ("usageevent", "received_at")):
        of_year = admin_client.get(f"/admin/billing/{page}/").content.decode()
        assert [f"{name}__month={month}&" in of_year for month in range(1, 8)] == [
            2 < month < 6 for month in range(1, 8)
        ]
        for day, count in ((6, 0), (7, 1), (8, 0)):
            shown = admin_client.get(
                f"/admin/billing/{page}/", {f"{name}__year": 2025, f"{name}__month": 5, f"{name}__day": day}
            )
            assert len(shown.context["cl"].result_list) == count


def test_quantity_of_33_digits_is_shown_with_all_of_them(tax: TaxService, admin_client: Client) -> None:
    customer, quantity = make_customer("A"), "123456789012345678.123456789012345"
    make_price("hours", "0.0001")
    usage = make_usage(customer, "1", quantity)
    runs.plan(MAY)
    pages = [f"usageevent/{usage.pk}/change/", f"item/{Item.objects.get().pk}/preview/"]
    assert [quantity in html(admin_client, page) for page in pages] == [True, True]
    invoice(customer.pk, MAY)
    assert quantity in html(admin_client, f"invoice/{Invoice.objects.get().pk}/change/")


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["invoice", "item"])
@pytest.mark.parametrize("address", ["abc", "999999"])
def test_page_of_a_row_that_is_not_there_leads_back_and_does_not_fail(
    name: str, address: str, admin_client: Client
) -> None:
    assert admin_client.get(f"/admin/billing/{name}/{address}/change/").status_code == 302
