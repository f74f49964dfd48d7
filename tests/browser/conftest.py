"""A real browser on the admin: Debian's Chromium, driven by Playwright."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
from django.contrib.auth.models import User
from django.db import connections
from pytest_django.live_server_helper import LiveServer

from billing import crediting, mailing, runs
from billing.invoicing import invoice
from billing.models import Customer, Invoice, Item
from billing.periods import Period
from leases.models import Incident
from outbox.models import Message, State
from tests.billing.conftest import TaxService, tax, well_behaved_tax_service
from tests.billing.making import make_customer, make_price, make_usage
from tests.servers.needs import PROGRAMS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, ViewportSize

__all__ = ["tax", "well_behaved_tax_service"]

MAY = Period.parse("2026-05")
PASSWORD = "correct horse battery staple"
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
#: What a program shows to itself.
RAW = re.compile(r"""\{["']|datetime\(|\bNone\b(?! available)""")
LONG = "Gesellschaft für außergewöhnlich lange Firmennamen und deren Abrechnung mbH & Co. KG"


@pytest.fixture
def billed(tax: TaxService) -> dict[str, int]:
    """One of everything that the pages show; the ids that are in addresses."""
    User.objects.create_superuser("developer", password=PASSWORD)
    currencies = ["EUR", "JPY", "KWD", "USD", "EUR"]
    customers = [make_customer(f"C{number:05}", currency=currency) for number, currency in enumerate(currencies, 1)]
    Customer.objects.filter(code="C00002").update(name=LONG)
    for currency in set(currencies):
        make_price("compute.hours", "1234.5", currency=currency)
    for customer, lines in zip(customers, [30, 3, 3, 3, 0], strict=True):
        for line in range(lines):
            make_usage(customer, f"{customer.code}-{line:06}", "1.25", metric="compute.hours", subject=f"vm-{line}")
    make_usage(customers[-1], "unpriced", "3", metric="egress.gigabytes")
    run = runs.plan(MAY)
    for customer in customers:
        invoice(customer.pk, MAY)
    first, second, third, _ = Invoice.objects.order_by("pk")
    crediting.void(second.pk, "The price of compute hours was wrong, as the customer found out")
    [in_doubt] = mailing.messages_of([third])[third.pk]
    Message.objects.filter(pk=in_doubt.pk).update(
        state=State.IN_DOUBT, attempts=1, last_error="the connection was lost after the final dot, before the answer"
    )
    incident = Incident.objects.create(
        resource=f"customer:{customers[0].pk}", token=1_761_234_567_890_123, holder="a" * 32,
        detector=Incident.Detector.DEADLINE_PASSED, fate=Incident.Fate.RUNNING, host="worker-7", pid=4242,
        seen_at=first.issued_at,
    )  # fmt: skip
    parked = Item.objects.get(outcome="parked")
    return {
        "run": run.pk, "item": parked.pk, "invoice": first.pk, "void": second.pk, "customer": customers[1].pk,
        "message": in_doubt.pk, "incident": incident.pk,
    }  # fmt: skip


@pytest.fixture
def browser(billed: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> "Iterator[Browser]":
    """Chromium with an empty profile; started after the rows are there, for it runs an event loop in this thread."""
    from playwright.sync_api import sync_playwright

    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    # The server's threads keep no connection to a database that is about to go.
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=shutil.which("chromium", path=PROGRAMS), args=FLAGS)
        yield started
        connections.close_all()  # the test's own: beside an event loop Django opens another
        started.close()


class Visitor:
    """A person who has logged in and looks around."""

    def __init__(self, page: "Page", url: str, title: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        self._title = title
        page.on("pageerror", lambda error: self.complaints.append(f"{page.url}: {error}"))
        page.on("console", self._hear)

    def _hear(self, said: "ConsoleMessage") -> None:
        if said.type == "error":
            self.complaints.append(f"{self.page.url}: {said.text}")

    def log_in(self) -> None:
        self.page.goto(f"{self.url}/admin/")
        self.page.fill("#id_username", "developer")
        self.page.fill("#id_password", PASSWORD)
        self.page.click("[type=submit]")
        self.page.wait_for_url(f"{self.url}/admin/")

    def look_at(self, path: str, name: str) -> str:
        """Open a page, note what a person would dislike, keep a picture where BROWSER_SCREENSHOTS asks; its text."""
        response = self.page.goto(f"{self.url}/admin/{path}")
        assert response
        if response.status != 200:
            self.complaints.append(f"{path}: status {response.status}")
        return self.see(name)

    def see(self, name: str) -> str:
        too_wide = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if too_wide > 0:
            self.complaints.append(f"{name} is {too_wide} px too wide")
        text = self.page.inner_text("body")
        self.complaints.extend(f"{name} shows {raw}" for raw in RAW.findall(text))
        if folder := os.environ.get("BROWSER_SCREENSHOTS"):
            self.page.screenshot(path=Path(folder) / f"{name}-{self._title}.png", full_page=True)
        return text


@pytest.fixture
def visitor(browser: "Browser", live_server: LiveServer, request: pytest.FixtureRequest) -> Visitor:
    """Logged in, with the width and colours that the test is parametrized with."""
    width: int
    colours: Literal["light", "dark"]
    width, colours = getattr(request, "param", (1280, "light"))
    size: ViewportSize = {"width": width, "height": 800}
    page = browser.new_context(viewport=size, color_scheme=colours).new_page()
    page.set_default_timeout(20_000)
    visitor = Visitor(page, live_server.url, f"{width}-{colours}")
    visitor.log_in()
    return visitor
