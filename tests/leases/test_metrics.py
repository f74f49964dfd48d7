"""What is counted, and that nothing is needed to count nothing."""

import logging
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, generate_latest

from leases import hold, metrics
from leases.errors import LeaseBusy, LeaseLost, StaleToken
from leases.models import Incident, LeaseRecord
from leases.watcher import Watcher
from tests.leases.conftest import steal
from tests.leases.threads import in_thread
from tests.ledger.models import Account, Entry
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
SHORT = timedelta(milliseconds=600)


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.fixture
def grows() -> Callable[..., Callable[[], float]]:
    """Give a function that tells by how much a sample has grown since."""

    def since(name: str, **labels: str) -> Callable[[], float]:
        before = value(name, **labels)
        return lambda: value(name, **labels) - before

    return since


def test_lease_from_its_grant_to_its_release(grows: Callable[..., Callable[[], float]]) -> None:
    acquired = grows("leases_acquired_total", kind="customer")
    waited = grows("leases_wait_seconds_count", kind="customer")
    held = grows("leases_hold_seconds_count", kind="customer")
    with hold("customer:1"):
        assert (acquired(), waited(), held()) == (1, 1, 0)
    assert held() == 1


def test_busy_after_waiting_counts_once(grows: Callable[..., Callable[[], float]]) -> None:
    busy = grows("leases_busy_total", kind="customer")
    steal("customer:1")
    with pytest.raises(LeaseBusy), hold("customer:1", wait=timedelta(milliseconds=50)):
        pass
    assert busy() == 1


def test_time_waited_for_a_lease(grows: Callable[..., Callable[[], float]]) -> None:
    waited = grows("leases_wait_seconds_sum", kind="customer")
    steal("customer:1", ttl_ms=300)
    with hold("customer:1", wait=timedelta(seconds=5)):
        assert 0.1 < waited() < 5


def test_renewals_and_how_late_they_are(grows: Callable[..., Callable[[], float]]) -> None:
    renewed = grows("leases_renewals_total", answer="renewed")
    rounds = grows("leases_keeper_lag_seconds_count")
    with hold("customer:1", ttl=SHORT):
        wait_until(lambda: renewed() >= 2 and rounds() >= 2)


def test_loss_by_its_cause(grows: Callable[..., Callable[[], float]]) -> None:
    lost = grows("leases_lost_total", kind="customer", cause="renewal_refused")
    incidents = grows("leases_incidents_total", detector="renewal_refused", fate="running")
    with pytest.raises(LeaseLost), hold("customer:1", ttl=SHORT) as lease:
        steal("customer:1")
        wait_until(lambda: not lease.is_held)
        wait_until(lambda: Incident.objects.filter(token=lease.token).exists())
    assert lost() == 1
    wait_until(lambda: incidents() == 1)


def test_stale_write(account: Account, resource: str, grows: Callable[..., Callable[[], float]]) -> None:
    refused = grows("leases_stale_writes_refused_total", kind="account")
    with pytest.raises(LeaseLost), hold(resource):
        steal(resource)
        with pytest.raises(StaleToken):
            Entry.objects.create(account=account)
    assert refused() == 1


def test_headroom_is_measured_by_the_watcher() -> None:
    with hold("measured:1"):
        pass
    LeaseRecord.objects.update(ttl_ms=1)
    watcher = Watcher()
    with in_thread(watcher.run):
        wait_until(lambda: value("leases_headroom_used_ratio", kind="measured") > 0.5)
        watcher.stop.set()


def test_counting_does_not_depend_on_the_level_of_the_log(
    caplog: pytest.LogCaptureFixture, grows: Callable[..., Callable[[], float]]
) -> None:
    acquired = grows("leases_acquired_total", kind="customer")
    caplog.set_level(logging.CRITICAL, "leases")
    with hold("customer:1"):
        pass
    assert acquired() == 1


def test_names_of_resources_never_become_labels() -> None:
    for resource in ("secret-name", "customer:secret-name"):
        with hold(resource):
            pass
    assert b"secret-name" not in generate_latest(REGISTRY)


def test_every_metric_is_in_the_table() -> None:
    assert metrics.__doc__
    documented = set(re.findall(r"`(leases_\w+)`", metrics.__doc__))
    exported = {
        sample.name + ("_total" if family.type == "counter" else "")
        for family in REGISTRY.collect()
        for sample in [family]
        if family.name.startswith("leases_")
    }
    assert exported == documented


def test_every_event_of_the_protocol_is_in_the_table() -> None:
    assert metrics.__doc__
    documented = set(re.findall(r"^\| `([a-z_.]+)` ", metrics.__doc__, re.MULTILINE))
    source = "".join(path.read_text() for path in Path("leases").glob("*.py") if path.name != "metrics.py")
    events = set(re.findall(r'"event": "([a-z_.]+)"', source)) | set(re.findall(r'_log\("([a-z_.]+)"', source))
    of_the_protocol = {
        event for event in events if event.partition(".")[0] in ("lease", "incident", "fences", "watcher")
    }
    assert of_the_protocol
    assert of_the_protocol <= documented


def test_nothing_is_needed_to_count_nothing() -> None:
    program = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from leases import metrics\n"
        "metrics.acquired('a:1', waited_s=1); metrics.busy('a:1'); metrics.released('a:1', held_s=1)\n"
        "metrics.lost('a:1', cause='x', held_s=1); metrics.renewed(['renewed'], late_s=0)\n"
        "metrics.stale_write_refused('a:1'); metrics.incident(detector='x', fate='y'); metrics.headroom([])\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
