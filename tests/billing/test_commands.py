"""The billing commands as processes: signals, exit codes, and servers that are not there."""

import pytest

from billing import runs
from billing.models import Item, Run
from billing.periods import Period
from tests.billing.conftest import TaxService
from tests.billing.making import make_customer
from tests.servers.processes import Processes
from tests.servers.redis_server import PrivateRedis
from tests.waiting import wait_until

SHORT_WAITS = {"DJANGO_SETTINGS_MODULE": "tests.billing.workers"}
NO_REDIS = {**SHORT_WAITS, "REDIS_URL": "redis://127.0.0.1:1"}


@pytest.fixture
def item(tax: TaxService) -> Item:
    """One open item that nobody works on."""
    make_customer()
    return runs.plan(Period.parse("2026-05")).items.get()


def test_bill_that_is_interrupted_leaves_the_run_going(processes: Processes, tax: TaxService) -> None:
    make_customer()
    bill = processes.start("bill", "2026-05", "--wait", env=SHORT_WAITS)
    bill.wait_for_line("1 customers enqueued")
    bill.interrupt()
    assert bill.wait() == 130
    assert f"the run goes on: manage.py run_status {Run.objects.get().pk}" in bill.output()
    assert Item.objects.get().outcome == ""


def test_rescuer_ends_its_pass_and_stops_on_sigterm(
    processes: Processes, redis_server: PrivateRedis, item: Item
) -> None:
    rescue = processes.start(
        "rescue", "--watch", "--interval", "0.2", env={**SHORT_WAITS, "REDIS_URL": redis_server.url}
    )
    rescue.wait_for_line("enqueued again: 0 abandoned, 1 stalled")
    wait_until(lambda: Item.objects.get().rescues == 1)
    rescue.terminate()
    assert rescue.wait() == 0


def test_rescuer_without_redis_says_so_and_goes_on(
    processes: Processes, redis_server: PrivateRedis, item: Item
) -> None:
    Item.objects.update(started_at="2026-01-01T00:00:00Z")
    once = processes.start("rescue", "--once", env=NO_REDIS)
    assert once.wait() == 1
    assert "The pass could not be finished: the broker does not answer" in once.output()
    watch = processes.start("rescue", "--watch", "--interval", "0.2", env=NO_REDIS)
    watch.wait_for_line("The pass could not be finished and is done again")
    watch.interrupt()
    assert watch.wait() == 0


@pytest.mark.parametrize(
    "command", ["bill", "run_status", "rescue", "import_customers", "import_prices", "import_usage"]
)
def test_help_has_an_example_and_exit_codes(processes: Processes, command: str) -> None:
    shown = processes.run(command, "--help").output()
    assert "example" in shown
    assert f"manage.py {command}" in shown
    assert "exit codes: 0" in shown
