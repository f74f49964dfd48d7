"""A worker that is killed, or frozen past its lease and overtaken, at each step: one invoice, one email."""

from collections.abc import Iterator

import pytest
import redis

from billing.models import Customer
from leases.resources import key_of
from tests.faults.billed import PERIOD, add_customer, billed_once, column, found, one
from tests.faults.conftest import PATIENCE, MailRecord, Programs, Server
from tests.servers.plugin import SCRATCH
from tests.servers.processes import Processes
from tests.waiting import wait_until

STEPS = [
    "lease.acquired",
    "lease.registered",
    "invoice.rated",
    "tax.answered 1",
    "tax.answered 2",
    "tax.answered 3",
    "invoice.committing",
    "invoice.issued",
    "lease.releasing",
]
AFTER_COMMIT = ("invoice.issued", "lease.releasing")
# What the frozen one says when it wakes, where it is not LeaseLost.
WOKEN = {
    "lease.acquired": {"outcome": "already_invoiced"},  # not registered yet: it asks for a new token, and looks
    "invoice.committing": {"error": "InternalError"},  # PostgreSQL has ended its session, and with it the transaction
}


@pytest.fixture(scope="module", autouse=True)
def drainer(
    pytestconfig: pytest.Config,
    tmp_path_factory: pytest.TempPathFactory,
    django_db_setup: None,
    simulators: dict[str, Server],
) -> Iterator[None]:
    """One drainer that sends whatever these tests publish."""
    started = Processes(pytestconfig.stash[SCRATCH], tmp_path_factory.mktemp("drainer"))
    port = str(simulators["mailserver"].port)
    started.start("drain_outbox", "--watch", env={"EMAIL_HOST": "127.0.0.1", "EMAIL_PORT": port})
    yield
    started.close()


@pytest.fixture
def customer(programs: Programs) -> Customer:
    return add_customer(1)


def requests(taxservice: Server, customer: Customer) -> int:
    return sum(line["document"].startswith(f"invoice:{customer.pk}:") for line in taxservice.lines())


def check_mailed_once(mails: MailRecord, customer: Customer) -> None:
    wait_until(lambda: one("SELECT state FROM outbox_message") == "sent", PATIENCE)
    assert mails.to(customer.email) == 1


@pytest.mark.parametrize("step", STEPS)
def test_worker_killed_at_a_step_leaves_what_the_next_one_completes_once(
    programs: Programs, mails: MailRecord, simulators: dict[str, Server], customer: Customer, step: str
) -> None:
    before = requests(simulators["taxservice"], customer)
    assert programs.start("invoice", str(customer.pk), PERIOD, "0", fault=f"SIGKILL {step}").killed()
    second = programs.start("invoice", str(customer.pk), PERIOD, "30").end()
    assert second["outcome"] == ("already_invoiced" if step in AFTER_COMMIT else "issued")
    assert found(customer.pk) == billed_once()
    assert requests(simulators["taxservice"], customer) - before == 3, "an answer was paid for twice"
    check_mailed_once(mails, customer)


@pytest.mark.parametrize("step", STEPS)
def test_worker_frozen_past_its_lease_cannot_write_after_takeover(
    programs: Programs,
    mails: MailRecord,
    simulators: dict[str, Server],
    redis_client: "redis.Redis",
    customer: Customer,
    step: str,
) -> None:
    # outbox B46
    before = requests(simulators["taxservice"], customer)
    resource = f"customer:{customer.pk}"
    first = programs.start("invoice", str(customer.pk), PERIOD, "0", fault=f"SIGSTOP {step}")
    first.reached()
    wait_until(lambda: not redis_client.exists(key_of(resource)))
    second = programs.start("invoice", str(customer.pk), PERIOD, "30").end()
    assert second["outcome"] == ("already_invoiced" if step in AFTER_COMMIT else "issued")
    overtaken_by = one("SELECT token FROM leases_fence WHERE resource = %s", resource)

    first.wake()
    assert first.end() == WOKEN.get(step, {"error": "LeaseLost"})
    assert found(customer.pk) == billed_once()
    token = one("SELECT token FROM billing_invoice WHERE customer_id = %s", customer.pk)
    assert (token < overtaken_by) if step in AFTER_COMMIT else (token == overtaken_by)
    assert requests(simulators["taxservice"], customer) - before == 3
    if step != "lease.acquired":  # before it is registered, nobody can know of it
        assert column("SELECT fate FROM leases_incident WHERE resource = %s", resource)
    check_mailed_once(mails, customer)
