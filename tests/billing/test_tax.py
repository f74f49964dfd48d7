"""The client against the real tax service, and against servers that answer what no test wants to see."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from pytest_django import Settings

from billing import tax as tax_client
from billing.errors import TaxAnswerInvalid
from billing.invoicing import invoice
from billing.models import Customer, Invoice, InvoiceLine, Item, Price, TaxAnswer
from billing.periods import Period
from leases import Lease
from tests.billing.conftest import TaxService, start_tax_service
from tests.billing.making import make_customer, make_usage
from tests.servers.processes import Processes

MAY = Period.parse("2026-05")


@pytest.fixture
def customer(tax: TaxService) -> Customer:
    """A customer with 25 lines of 1.00 and five that come to nothing."""
    customer = make_customer()
    for n in range(25):
        make_usage(customer, str(n), amount="1.00", subject=f"{n:02}")
    for n in range(5):
        make_usage(customer, f"free-{n}", amount="0.001", subject=f"free-{n}")
    return customer


def test_requests_are_as_few_as_the_limit_allows(customer: Customer, tax: TaxService, settings: Settings) -> None:
    # billing 108, 109: the incident's service was called per line; 110: lines of nothing are not asked about
    settings.BILLING_TAX_LINES_PER_REQUEST = 10
    invoice(customer.pk, MAY)
    assert [request["lines"] for request in tax.requests()] == [10, 10, 5]
    made = Invoice.objects.get()
    assert (made.net_minor, made.tax_minor) == (2500, 475)
    assert InvoiceLine.objects.filter(tax_rate=None).count() == 5


def test_every_request_names_the_same_document(customer: Customer, tax: TaxService, settings: Settings) -> None:
    # billing 115: a document code with a random part would be a second document at each retry
    settings.BILLING_TAX_LINES_PER_REQUEST = 10
    invoice(customer.pk, MAY)
    assert {request["document"] for request in tax.requests()} == {f"invoice:{customer.pk}:usage:2026-05:v1"}


def test_attempt_that_broke_off_pays_only_for_what_is_missing(
    customer: Customer, tax: TaxService, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.BILLING_TAX_LINES_PER_REQUEST = 10
    ask = tax_client._ask_patiently
    with monkeypatch.context() as broken:

        def crash_after_two_answers(lease: Lease, question: dict[str, Any]) -> dict[str, str]:
            if TaxAnswer.objects.count() == 2:
                raise SystemExit
            return ask(lease, question)

        broken.setattr(tax_client, "_ask_patiently", crash_after_two_answers)
        with pytest.raises(SystemExit):
            invoice(customer.pk, MAY)
    assert len(tax.requests()) == TaxAnswer.objects.count() == 2
    assert invoice(customer.pk, MAY).kind == Item.Outcome.ISSUED
    assert [request["lines"] for request in tax.requests()] == [10, 10, 5]


def test_rejected_question_parks_the_customer(customer: Customer, tax: TaxService) -> None:
    Customer.objects.update(country="XX")
    outcome = invoice(customer.pk, MAY)
    assert outcome.kind == Item.Outcome.PARKED
    assert "unknown country 'XX'" in outcome.reason
    assert len(tax.requests()) == 1
    assert not Invoice.objects.exists()


def test_service_that_fails_now_and_then_is_asked_again(
    customer: Customer, processes: Processes, tmp_path: Path, settings: Settings
) -> None:
    # 503, 429 with Retry-After, replies that never come: in the end every line has its answer, none is taken as zero
    log = tmp_path / "requests.jsonl"
    settings.BILLING_TAX_URL = start_tax_service(processes, log, "--fail-rate", "0.4", "--seed", "3")
    settings.BILLING_TAX_LINES_PER_REQUEST = 1
    attempts = 0
    while invoice(customer.pk, MAY).kind == Item.Outcome.FAILED:
        attempts += 1
        assert attempts < 25
    statuses = [json.loads(line)["status"] for line in log.read_text().splitlines()]
    assert {200, 503, 429, 0} == set(statuses)
    assert statuses.count(200) == 25
    assert Invoice.objects.get().tax_minor == 475


def test_service_that_is_not_there_fails_for_now(customer: Customer, settings: Settings) -> None:
    # billing 105, 106: an outage is not a rate of zero
    settings.BILLING_TAX_URL = "http://127.0.0.1:1"
    outcome = invoice(customer.pk, MAY)
    assert outcome.kind == Item.Outcome.FAILED
    assert outcome.retry_in == timedelta(seconds=5)
    assert "not available (ConnectError at http://127.0.0.1:1)" in outcome.reason
    assert not Invoice.objects.exists()


Answer = Callable[[dict[str, Any]], tuple[int, dict[str, str], bytes]]


@contextmanager
def server(answer: Answer) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A tax service that answers as told; yields its URL and what it was asked."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(question)
            status, headers, body = answer(question)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", asked
        running.shutdown()
        thread.join()


def lines(*answers: dict[str, str]) -> Answer:
    return lambda question: (200, {}, json.dumps({"lines": list(answers)}).encode())


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        (lambda question: (200, {}, b"<html>welcome</html>"), "JSONDecodeError"),
        (lambda question: (200, {}, b"{}"), "KeyError"),
        (lines(), "line 1 of category 'standard' has no answer"),
        (lines({"key": "1", "category": "reduced", "rate": "0.07"}), "line 1 of category 'standard' has no answer"),
        (lines({"key": "1", "category": "standard", "rate": ""}), "'' is no tax rate"),
        (lines({"key": "1", "category": "standard", "rate": "NaN"}), "'NaN' is no tax rate"),
        (lines({"key": "1", "category": "standard", "rate": "-0.19"}), "'-0.19' is no tax rate"),
        (lines({"key": "1", "category": "standard", "rate": "19"}), "'19' is no tax rate"),
        (lines({"key": "1", "category": "standard", "rate": "0.12345678"}), "'0.12345678' is no tax rate"),
    ],
)
def test_answer_that_is_no_rate_is_never_used(tax: TaxService, settings: Settings, answer: Answer, detail: str) -> None:
    customer = make_customer()
    make_usage(customer, "1", amount="1.00")
    with server(answer) as (url, _), pytest.raises(TaxAnswerInvalid, match=detail):
        settings.BILLING_TAX_URL = url
        invoice(customer.pk, MAY)
    assert not Invoice.objects.exists()
    assert not TaxAnswer.objects.exists()


@pytest.mark.parametrize(
    ("headers", "retry_in", "requests"),
    [
        ({"Retry-After": "7"}, timedelta(seconds=7), 1),
        ({"Retry-After": "3600"}, timedelta(hours=1), 1),
        ({"Retry-After": "soon"}, timedelta(seconds=5), tax_client.TRIES),
        ({}, timedelta(seconds=5), tax_client.TRIES),
    ],
)
def test_wish_to_be_left_alone_is_honoured(
    tax: TaxService, settings: Settings, headers: dict[str, str], retry_in: timedelta, requests: int
) -> None:
    customer = make_customer()
    make_usage(customer, "1", amount="1.00")
    with server(lambda question: (429, headers, b"")) as (url, asked):
        settings.BILLING_TAX_URL = url
        assert invoice(customer.pk, MAY).retry_in == retry_in
    assert len(asked) == requests


def test_wish_to_be_left_alone_may_be_a_date(tax: TaxService, settings: Settings) -> None:
    customer = make_customer()
    make_usage(customer, "1", amount="1.00")
    at = format_datetime(datetime.now(UTC) + timedelta(minutes=5), usegmt=True)
    with server(lambda question: (503, {"Retry-After": at}, b"")) as (url, _):
        settings.BILLING_TAX_URL = url
        retry_in = invoice(customer.pk, MAY).retry_in
    assert retry_in is not None
    assert timedelta(minutes=4) < retry_in <= timedelta(minutes=5)


def test_wish_to_be_left_alone_for_ever_is_not(tax: TaxService, settings: Settings) -> None:
    customer = make_customer()
    make_usage(customer, "1", amount="1.00")
    with server(lambda question: (503, {"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}, b"")) as (url, _):
        settings.BILLING_TAX_URL = url
        assert invoice(customer.pk, MAY).retry_in == timedelta(days=1)


@pytest.mark.parametrize("status", [401, 403, 404, 500, 502])
def test_misconfigured_service_parks_nobody(tax: TaxService, settings: Settings, status: int) -> None:
    customer = make_customer()
    make_usage(customer, "1", amount="1.00")
    with server(lambda question: (status, {"Retry-After": "60"}, b"")) as (url, _):
        settings.BILLING_TAX_URL = url
        outcome = invoice(customer.pk, MAY)
    assert (outcome.kind, outcome.retry_in) == (Item.Outcome.FAILED, timedelta(seconds=60))


def test_silence_is_unknown_and_the_same_question_is_asked_again(tax: TaxService, settings: Settings) -> None:
    # billing 113, 114: it may have been counted there, so the retry must be the same document and content
    customer = make_customer()
    make_usage(customer, "1", amount="1.00")
    settings.BILLING_TAX_TIMEOUT = timedelta(milliseconds=200)
    release = threading.Event()

    def silent(question: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        release.wait(20)
        return 200, {}, b"{}"

    with server(silent) as (url, asked):
        settings.BILLING_TAX_URL = url
        outcome = invoice(customer.pk, MAY)
        release.set()
    assert outcome.kind == Item.Outcome.FAILED
    assert "did not answer (ReadTimeout)" in outcome.reason
    assert len(asked) == tax_client.TRIES
    assert asked[0] == asked[1] == asked[2]


def found_by_checks() -> list[str]:
    return [str(check.id) for check in run_checks() if str(check.id).startswith("billing.")]


def test_timeout_must_fit_into_the_lease(settings: Settings) -> None:
    settings.LEASES_TTL = timedelta(seconds=30)
    settings.BILLING_TAX_TIMEOUT = timedelta(seconds=10)
    assert found_by_checks() == ["billing.E001"]
    settings.BILLING_TAX_TIMEOUT = timedelta(seconds=9)
    assert found_by_checks() == []


def test_request_must_have_lines(settings: Settings) -> None:
    settings.BILLING_TAX_LINES_PER_REQUEST = 0
    assert found_by_checks() == ["billing.E002"]


@pytest.mark.parametrize("sender", ["nobody", "", "a@example.org, b@example.org", "a@example.org\nBcc: b@example.org"])
def test_sender_must_be_one_address(settings: Settings, sender: str) -> None:
    settings.DEFAULT_FROM_EMAIL = sender
    assert found_by_checks() == ["billing.E003"]
    settings.BILLING_EMAIL_FROM = "Billing <billing@example.org>"
    assert found_by_checks() == []


@pytest.mark.parametrize("series", ["", " ", "INV\n", "INVOICES-OF-THE-YEAR-2026"])
def test_series_must_fit_before_a_number(settings: Settings, series: str) -> None:
    settings.BILLING_SERIES = series
    assert found_by_checks() == ["billing.E005"]
    settings.BILLING_SERIES, settings.BILLING_CREDIT_SERIES = "2026/INV", series
    assert found_by_checks() == ["billing.E005"]


@pytest.mark.parametrize("url", ["", "localhost:8899", "ftp://tax.example.org", "http://", "http://[::1"])
def test_address_of_the_tax_service_that_is_none_parks_nobody(
    tax: TaxService, customer: Customer, settings: Settings, url: str
) -> None:
    settings.BILLING_TAX_URL = url
    assert found_by_checks() == ["billing.E004"]
    outcome = invoice(customer.pk, MAY)
    assert outcome.kind == Item.Outcome.FAILED
    assert f"BILLING_TAX_URL is {url!r}, which is no http address" in outcome.reason


def test_price_of_each_tax_category_is_taxed_at_its_own_rate(tax: TaxService) -> None:
    customer = make_customer()
    for category in ("standard", "reduced", "exempt"):
        Price.objects.create(
            metric=category,
            currency="EUR",
            unit_price=1,
            tax_category=category,
            valid_from=datetime(2020, 1, 1, tzinfo=UTC),
        )
        make_usage(customer, category, "10", metric=category)
    invoice(customer.pk, MAY)
    assert [(t["category"], t["rate"], t["tax_minor"]) for t in Invoice.objects.get().taxes] == [
        ("exempt", "0", 0),
        ("reduced", "0.07", 70),
        ("standard", "0.19", 190),
    ]
