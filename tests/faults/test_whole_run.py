"""Real workers on a real broker, disturbed in mid-run: everybody invoiced once, mailed once, nobody forgotten."""

from collections.abc import Callable

import psutil
import pytest
import redis

from billing.actors import invoice_customer
from billing.models import Customer
from project.broker import make_broker
from tests.faults.billed import PERIOD, add_customer, column, found, one
from tests.faults.conftest import PATIENCE, MailRecord, Program, Programs
from tests.servers.processes import Processes
from tests.servers.redis_server import PrivateRedis
from tests.waiting import wait_until

CUSTOMERS = 12


@pytest.fixture
def slow_taxes(processes: Processes) -> dict[str, str]:
    """A tax service that takes its time, so that a run has a middle."""
    service = processes.start("taxservice", "--port", 0, "--latency-per-line-ms", 60)
    address = service.wait_for_line(r"listening on (.*)", PATIENCE)[1]
    return {"BILLING_TAX_URL": f"http://{address}"}


@pytest.fixture
def customers(programs: Programs) -> list[Customer]:
    return [add_customer(number) for number in range(CUSTOMERS)]


@pytest.fixture
def workers(programs: Programs, slow_taxes: dict[str, str]) -> Callable[..., Program]:
    def start(processes: int = 2, threads: int = 2, fault: str = "") -> Program:
        options = ("--processes", str(processes), "--threads", str(threads), "--queues", "billing")
        return programs.manage("rundramatiq", *options, fault=fault, **slow_taxes)

    return start


def invoices() -> int:
    return int(one("SELECT count(*) FROM billing_invoice"))


def check_everybody_is_billed_once(programs: Programs, mails: MailRecord, customers: list[Customer]) -> None:
    assert programs.manage("drain_outbox", "--until-empty").process.wait(PATIENCE) == 0
    for customer in customers:
        now = found(customer.pk)
        assert (now.live_invoices, now.messages, mails.to(customer.email)) == (1, 1, 1), customer
    numbers = column("SELECT number FROM billing_invoice ORDER BY number")
    assert numbers == list(range(1, len(customers) + 1)), "numbers have no gap"


def test_flushall_in_mid_run_costs_time_only(
    programs: Programs,
    mails: MailRecord,
    redis_server: PrivateRedis,
    customers: list[Customer],
    workers: Callable[..., Program],
) -> None:
    workers()
    run = programs.manage("bill", PERIOD, "--wait")
    wait_until(lambda: invoices() >= 3, PATIENCE)
    redis_server.flushall()  # every lease and every message is gone
    assert invoices() < CUSTOMERS
    assert run.process.wait(PATIENCE) == 0, run.process.output()
    check_everybody_is_billed_once(programs, mails, customers)


def test_work_of_killed_workers_comes_back(
    programs: Programs, mails: MailRecord, customers: list[Customer], workers: Callable[..., Program]
) -> None:
    first = workers(fault="SIGKILL tax.answered 5")
    run = programs.manage("bill", PERIOD, "--wait")
    first.process.wait(PATIENCE)  # one dead worker takes the others with it
    assert invoices() < CUSTOMERS
    workers()
    assert run.process.wait(PATIENCE) == 0, run.process.output()
    check_everybody_is_billed_once(programs, mails, customers)


def test_frozen_worker_that_wakes_after_others_did_its_work_changes_nothing(
    programs: Programs, mails: MailRecord, customers: list[Customer], workers: Callable[..., Program]
) -> None:
    first = workers(processes=1, threads=1, fault="SIGSTOP tax.answered 2")
    run = programs.manage("bill", PERIOD, "--wait")
    wait_until(lambda: any(child.status() == psutil.STATUS_STOPPED for child in first.process.children()), PATIENCE)
    workers()
    assert run.process.wait(PATIENCE) == 0, run.process.output()
    first.wake()
    assert first.process.wait_for_event("lease.lost", PATIENCE)
    check_everybody_is_billed_once(programs, mails, customers)


def test_same_message_delivered_five_times_at_once(
    programs: Programs,
    mails: MailRecord,
    redis_server: PrivateRedis,
    redis_client: "redis.Redis",
    workers: Callable[..., Program],
) -> None:
    # locks L53
    # outbox B40, C61, C62, C69
    customer = add_customer(1)
    broker = make_broker(redis_server.url)
    broker.declare_queue("billing")
    message = invoice_customer.message(customer.pk, PERIOD)
    for _ in range(5):
        broker.enqueue(message)
    broker.close()
    started = workers(processes=3, threads=2)
    wait_until(lambda: len(started.process.events("invoice.exists")) == 4, PATIENCE)  # the others found it, quietly
    wait_until(lambda: not redis_client.hlen("dramatiq:billing.msgs"), PATIENCE)
    assert len(started.process.events("invoice.issued")) == 1
    check_everybody_is_billed_once(programs, mails, [customer])
