"""What a drainer tells Prometheus, asked over HTTP of a real process."""

import re
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outbox.models import Message
from tests.servers.processes import Processes
from tests.waiting import wait_until

from .smtp_server import MailServer

pytestmark = pytest.mark.django_db(transaction=True)

Publish = Callable[..., Message]


def test_drainer_serves_depth_lag_outcomes_and_send_time(
    mail_server: MailServer, publish: Publish, processes: Processes, drainer_env: dict[str, str], tmp_path: Path
) -> None:
    for number in range(3):
        publish(f"k{number}")
    publish("orphan")
    Message.objects.filter(dedupe_key="orphan").update(channel="fax")
    publish("lost", to="drop_after_dot@example.org")
    publish("refused", to="permfail@example.org")
    health = tmp_path / "health.json"
    options = ["--watch", "--channel", "email", "--metrics", "127.0.0.1:0", "--health-file", str(health)]
    process = processes.start("drain_outbox", *options, env=drainer_env)
    url = process.wait_for_line(r"metrics on (http://\S+)")[1]

    def scrape() -> str:
        with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310  # our own process
            text: str = response.read().decode()
            return text

    def value(name: str) -> float | None:
        found = re.search(rf"^{re.escape(name)} (\S+)$", scrape(), re.MULTILINE)
        return float(found[1]) if found else None

    wait_until(lambda: value('outbox_outcomes_total{channel="email",outcome="accepted"}') == 3)
    wait_until(lambda: value('outbox_parked_total{channel="email",state="in_doubt"}') == 1)
    wait_until(lambda: value('outbox_parked_total{channel="email",state="dead"}') == 1)
    assert value('outbox_send_seconds_count{channel="email"}') == 5
    assert value('outbox_lag_seconds_count{channel="email"}') == 1  # one batch
    assert value('outbox_messages{channel="email",state="due"}') is not None
    assert value('outbox_messages{channel="fax",state="due"}') == 1  # although nobody drains it
    first: Any = wait_until(lambda: health.exists() and health.read_text())
    wait_until(lambda: health.read_text() != first, 15)  # it is rewritten as long as the drainer gets on


def test_health_file_stands_still_when_the_database_does_not_answer(
    processes: Processes, drainer_env: dict[str, str], tmp_path: Path
) -> None:
    health = tmp_path / "health.json"
    env = {**drainer_env, "DATABASE_URL": "postgresql://postgres@127.0.0.1:9/nowhere"}
    process = processes.start("drain_outbox", "--watch", "--health-file", str(health), env=env)
    process.wait_for_line("the database does not answer")
    assert not health.exists()
    process.terminate()
