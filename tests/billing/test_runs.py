"""Runs with real workers: every customer ends with an outcome, whatever happens to one of them or to the broker."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from django.core.management import CommandError, call_command

from billing import queueing, runs
from billing.invoicing import invoice
from billing.models import Customer, Invoice, Item, Run, UsageEvent
from billing.periods import Period
from outbox.models import Message
from tests.billing.conftest import TaxService
from tests.billing.making import make_customer, make_price, make_usage
from tests.servers.needs import RABBITMQ_URL
from tests.servers.processes import Processes, RunningProcess
from tests.servers.rabbitmq import own_queues
from tests.servers.redis_server import PrivateRedis
from tests.waiting import wait_until

MAY = Period.parse("2026-05")
Start = Callable[..., RunningProcess]


#: For tests that run on each broker.
BOTH = pytest.mark.parametrize("broker", ["redis", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)], indirect=True)


class Broker(NamedTuple):
    url: str
    forget: Callable[[], object]


@pytest.fixture
def broker(request: pytest.FixtureRequest, redis_server: PrivateRedis) -> Iterator[Broker]:
    """A broker of this test's own: the test's Redis, or the queues of billing in RabbitMQ."""
    if getattr(request, "param", "redis") == "redis":
        yield Broker(redis_server.url, redis_server.flushall)
        return
    queues = ["billing", "billing.DQ", "billing.XQ"]
    with own_queues(RABBITMQ_URL, queues) as channel:
        yield Broker(RABBITMQ_URL, lambda: [channel.queue_purge(name) for name in queues])


@pytest.fixture
def start(processes: Processes, redis_server: PrivateRedis, broker: Broker, tax: TaxService) -> Iterator[Start]:
    """Start `manage.py ...` on a broker of this test's own, with short waits."""
    environment = {
        "DJANGO_SETTINGS_MODULE": "tests.billing.workers",
        "REDIS_URL": redis_server.url,
        "BROKER_URL": broker.url,
        "BROKER_CONSUMER_TIMEOUT_SECONDS": "4200",
        "BILLING_TAX_URL": tax.url,
    }
    yield lambda *arguments, **more: processes.start(*arguments, env={**environment, **more})
    processes.close()


def workers(start: Start, **more: str) -> RunningProcess:
    process = start("rundramatiq", "--processes", 1, "--threads", 4, **more)
    process.wait_for_line("Worker process is ready for action", 60)
    return process


def customers(count: int, lines: int = 3) -> list[Customer]:
    made = [make_customer(f"C{n:03}") for n in range(count)]
    make_price("hours", "0.10")
    for customer in made:
        for n in range(lines):
            make_usage(customer, f"{customer.code}-{n}", subject=f"vm-{n}")
    return made


def outcomes() -> dict[str, str]:
    return dict(Item.objects.values_list("customer__code", "outcome"))


def report(process: RunningProcess) -> dict[str, Any]:
    """Return the JSON that a command printed among its log lines."""
    found = [json.loads(line) for line in process.output().splitlines() if line.startswith('{"run"')]
    parsed: dict[str, Any] = found[-1]
    return parsed


def check_each_invoiced_once(customers: list[Customer]) -> None:
    assert sorted(Invoice.objects.values_list("customer", flat=True)) == sorted(c.pk for c in customers)
    assert sorted(Invoice.objects.values_list("number", flat=True)) == list(range(1, len(customers) + 1))
    assert Message.objects.count() == len(customers)
    assert not UsageEvent.objects.filter(invoice=None, customer__in=customers).exists()


# Planning


def test_everybody_active_or_with_usage_left_is_planned(tax: TaxService) -> None:
    # billing 42, 46: nobody is dropped silently, and a closed customer's last usage is still billed
    for code in ("active", "closed", "closed-with-usage", "closed-long-ago"):
        make_customer(code)
    Customer.objects.exclude(code="active").update(status=Customer.Status.CLOSED)
    make_usage(Customer.objects.get(code="closed-with-usage"), "1", amount="1")
    make_usage(Customer.objects.get(code="closed-long-ago"), "2", amount="1")
    UsageEvent.objects.filter(key="2").update(occurred_at="2026-01-01T00:00:00Z")
    run = runs.plan(MAY)
    assert set(run.items.values_list("customer__code", "outcome")) == {("active", ""), ("closed-with-usage", "")}


def test_unknown_customer_plans_nothing(tax: TaxService) -> None:
    make_customer("A")
    with pytest.raises(CommandError, match="no customer has the code 'X', 'Y'; nothing was planned"):
        call_command("bill", "2026-05", "--customer", "A", "X", "--customer", "Y")
    assert not Run.objects.exists()


@pytest.mark.parametrize("text", ["2026-13", "May", "2026-05-02/2026-05-01"])
def test_period_that_is_none_plans_nothing(tax: TaxService, text: str) -> None:
    with pytest.raises(CommandError, match=r"is not a period\b.*; write a month such as 2026-05"):
        call_command("bill", text)


def test_dry_run_says_what_would_be_invoiced_and_changes_nothing(
    tax: TaxService, capsys: pytest.CaptureFixture[str]
) -> None:
    customers(2)
    make_customer("idle")
    call_command("bill", "2026-05", "--dry-run", "--json")
    shown = json.loads(capsys.readouterr().out)
    assert shown["net_minor"] == {"EUR": 600}
    assert {row.pop("customer"): tuple(row.values()) for row in shown["customers"]} == {
        "C000": ("EUR", "issued", 3, 300, ""),
        "C001": ("EUR", "issued", 3, 300, ""),
        "idle": ("EUR", "skipped", 0, 0, "no usage"),
    }
    assert not Run.objects.exists()
    assert not Invoice.objects.exists()
    assert not tax.requests()


def test_dry_run_of_a_month_already_billed_is_counts_and_some_examples(
    tax: TaxService, capsys: pytest.CaptureFixture[str]
) -> None:
    made = customers(14)
    for customer in made[:12]:
        invoice(customer.pk, MAY)
    make_usage(made[13], "unpriced", metric="seconds")
    capsys.readouterr()
    call_command("bill", "2026-05", "--dry-run")
    first, *examples, more, parked, last = capsys.readouterr().out.splitlines()
    assert first == "dry run, 2026-05: 14 customers: 1 issued, 12 already invoiced, 1 parked"
    assert examples[0] == "  C012: 3 lines, net EUR 3.00"
    assert [line.split(":")[0].strip() for line in examples[1:]] == [customer.code for customer in made[:10]]
    assert "already invoiced by INV-" in examples[1]
    assert more == "  and 2 more already invoiced; --json shows all"
    assert parked.startswith("  C013: ")
    assert last == "net EUR 3.00 before tax; nothing was changed"
    call_command("bill", "2026-05", "--dry-run", "--json")
    assert len(json.loads(capsys.readouterr().out)["customers"]) == 14


# Running


def test_run_bills_everybody_and_says_so(start: Start) -> None:
    made = customers(12)
    workers(start)
    bill = start("bill", "2026-05", "--wait", "--json")
    assert bill.wait(60) == 0
    check_each_invoiced_once(made)
    shown = report(bill)
    assert shown["outcomes"] == {"open": 0, "issued": 12, "already_invoiced": 0, "skipped": 0, "failed": 0, "parked": 0}
    assert shown["totals"] == [
        {"currency": "EUR", "invoices": 12, "net_minor": 3600, "tax_minor": 684, "gross_minor": 4284}
    ]


def test_billing_again_finds_everything_invoiced(start: Start) -> None:
    # locks L50
    # outbox B40
    made = customers(5)
    workers(start)
    assert start("bill", "2026-05", "--wait").wait(60) == 0
    bill = start("bill", "2026-05", "--wait", "--json")
    assert bill.wait(60) == 0
    assert report(bill)["outcomes"]["already_invoiced"] == 5
    check_each_invoiced_once(made)


def test_bill_that_does_not_wait_says_nothing_of_workers_that_have_begun(start: Start) -> None:
    made = customers(2)
    workers(start)
    bill = start("bill", "2026-05")
    assert bill.wait(60) == 0
    assert "no worker has begun" not in bill.output()
    wait_until(lambda: Invoice.objects.count() == 2, 30)
    check_each_invoiced_once(made)


def test_two_runs_of_one_month_at_once_tell_apart_what_each_of_them_issued(start: Start) -> None:
    made = customers(12)
    bills = [start("bill", "2026-05", "--wait", "--json") for _ in range(2)]
    wait_until(lambda: Item.objects.count() == 24, 30)
    workers(start)
    assert [bill.wait(60) for bill in bills] == [0, 0]
    check_each_invoiced_once(made)
    shown = [report(bill) for bill in bills]
    assert sum(run["outcomes"]["issued"] for run in shown) == 12
    assert sum(run["outcomes"]["already_invoiced"] for run in shown) == 12
    assert sum(total["gross_minor"] for run in shown for total in run["totals"]) == 4284


def test_one_bad_customer_does_not_stop_the_run(start: Start) -> None:
    # billing 38, 39, 41
    made = customers(6)
    make_usage(made[2], "unpriced", metric="seconds")
    Customer.objects.filter(pk=made[4].pk).update(timezone="Mars/Olympus")
    workers(start)
    bill = start("bill", "2026-05", "--wait", "--json")
    assert bill.wait(60) == 3
    good = [customer for n, customer in enumerate(made) if n not in (2, 4)]
    assert sorted(Invoice.objects.values_list("customer__code", flat=True)) == [c.code for c in good]
    reasons = {item["customer"]: (item["outcome"], item["reason"]) for item in report(bill)["attention"]}
    assert reasons["C002"] == (
        "parked", "1 usage event of 'seconds' without a price in EUR; import the price, then bill again"
    )  # fmt: skip
    assert reasons["C004"] == (
        "parked", "'Mars/Olympus' is not an IANA time zone; correct the customer, then bill again"
    )  # fmt: skip


def test_parked_customer_is_billed_by_the_next_run_once_cured(start: Start) -> None:
    # billing 40
    (customer,) = customers(1)
    make_usage(customer, "unpriced", metric="seconds")
    workers(start)
    assert start("bill", "2026-05", "--wait").wait(60) == 3
    make_price("seconds", "1")
    assert start("bill", "2026-05", "--wait").wait(60) == 0
    check_each_invoiced_once([customer])


def test_tax_outage_fails_items_for_now_and_they_recover(start: Start, processes: Processes, tax: TaxService) -> None:
    made = customers(3)
    running = workers(start, BILLING_TAX_URL="http://127.0.0.1:1")
    bill = start("bill", "2026-05", "--wait")
    wait_until(lambda: set(outcomes().values()) == {"failed"}, 30)
    running.kill()
    workers(start)
    assert bill.wait(60) == 0
    check_each_invoiced_once(made)
    assert min(Item.objects.values_list("attempts", flat=True)) > 1


@BOTH
def test_broker_that_forgot_everything_costs_time_only(start: Start, broker: Broker) -> None:
    # outbox C63
    made = customers(20)
    bill = start("bill", "2026-05", "--wait")
    bill.wait_for_line("20 customers enqueued")
    broker.forget()
    workers(start)
    assert bill.wait(60) == 0
    check_each_invoiced_once(made)


@BOTH
def test_work_of_a_killed_worker_comes_back(start: Start) -> None:
    # outbox B47
    made = customers(4, lines=12)
    running = workers(start, BILLING_TAX_LINES_PER_REQUEST="1")
    bill = start("bill", "2026-05", "--wait")
    running.wait_for_event("tax.answered")
    running.kill()
    workers(start)
    assert bill.wait(60) == 0
    check_each_invoiced_once(made)


@BOTH
def test_same_message_five_times_at_once_makes_one_invoice(start: Start) -> None:
    # billing 27-29
    made = customers(3)
    run = runs.plan(MAY)
    script = "from billing import queueing; [queueing.enqueue({ids}) for _ in range(5)]"
    start("shell", "-v0", "-c", script.format(ids=list(run.items.values_list("pk", flat=True)))).wait(30)
    running = workers(start)
    wait_until(lambda: set(outcomes().values()) == {"issued"}, 30)
    wait_until(lambda: len(running.events("invoice.exists")) >= 12, 30)
    check_each_invoiced_once(made)


def test_status_of_the_latest_run_is_shown(tax: TaxService, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommandError, match="There is no run yet"):
        call_command("run_status")
    customers(1)
    run = runs.plan(MAY)
    call_command("run_status")
    assert capsys.readouterr().out == f"run {run.pk}, 2026-05: 1 customer: 1 open\n"
    with pytest.raises(CommandError, match="There is no run 987654"):
        call_command("run_status", "987654")


def test_status_lists_who_was_skipped_and_why_up_to_the_limit(
    tax: TaxService, capsys: pytest.CaptureFixture[str]
) -> None:
    customers(3, lines=0)
    run = runs.plan(MAY)
    run.items.update(outcome="skipped", reason="no usage")
    call_command("run_status", "--limit", "2")
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  C000 skipped: no usage", "  C001 skipped: no usage", "  and 1 more skipped"
    ]  # fmt: skip
    call_command("run_status", "--limit", "1", "--json")
    shown = json.loads(capsys.readouterr().out)
    assert (shown["skipped"], shown["attention"]) == ([{"customer": "C000", "reason": "no usage"}], [])


def test_usage_that_no_run_takes_is_told_by_bill_and_by_the_status(
    tax: TaxService, capsys: pytest.CaptureFixture[str]
) -> None:
    late, other = make_customer("late", timezone="Europe/Berlin"), make_customer("other")
    make_price("hours", "0.10")
    for key in ("1", "2"):
        make_usage(late, key, at=datetime(2026, 4, 30, 20, tzinfo=UTC))
    make_usage(late, "3")
    invoice(late.pk, MAY)
    make_usage(late, "4")  # came after its invoice
    make_usage(other, "5", at=datetime(2026, 6, 1, tzinfo=UTC))
    run = runs.plan(MAY)
    run.items.update(outcome="already_invoiced")
    call_command("run_status")
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  1 customer with usage up to the end of 2026-05 that is on no invoice:",
        "    late: 3 usage events from 2026-04-30 20:00 to 2026-05-15 12:00 UTC",
    ]
    call_command("run_status", "--json")
    shown = json.loads(capsys.readouterr().out)
    assert (shown["unclaimed_customers"], shown["unclaimed"][0]["usage"]) == (1, 3)
    run.items.update(outcome="parked")  # it says for itself that it is not billed
    call_command("run_status")
    assert "no invoice" not in capsys.readouterr().out
    call_command("bill", "2026-05")
    assert capsys.readouterr().err.splitlines()[:2] == [
        "1 customer with usage from before 2026-05 that is on no invoice and that this run does not bill:",
        "    late: 2 usage events from 2026-04-30 20:00 to 2026-04-30 20:00 UTC",
    ]
    call_command("bill", "2026-05", "--customer", "other")
    assert "no invoice" not in capsys.readouterr().err


def test_item_that_is_done_is_not_enqueued_again(tax: TaxService) -> None:
    customers(1)
    run = runs.plan(MAY)
    run.items.update(outcome="parked")
    assert queueing.enqueue([run.items.get().pk]) == 0
    assert queueing.enqueue_run(run) == 0
