"""The billing commands as processes: signals, exit codes, and servers that are not there."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.core.management import CommandError, call_command
from django.db.models.functions import Now

from billing import runs
from billing.models import Item, Run
from billing.periods import Period
from billing.wording import counted
from tests.billing.conftest import TaxService
from tests.billing.making import make_customer
from tests.leases.proxy import Proxy, proxy_to
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
    bill.wait_for_line("1 customer enqueued")
    bill.interrupt()
    assert bill.wait() == 130
    assert f"the run goes on: manage.py run_status {Run.objects.get().pk}" in bill.output()
    assert Item.objects.get().outcome == ""


# Servers that are away

Line = tuple[Proxy, dict[str, str]]


@pytest.fixture
def line(processes: Processes) -> Iterator[Line]:
    """A line to the test's database that can be broken, and the environment that names it."""
    url = urlsplit(processes.environment["DATABASE_URL"])
    with proxy_to(url.port or 5432) as proxy:
        address = url._replace(netloc=url.netloc.rpartition(":")[0] + f":{proxy.port}")
        yield proxy, {**SHORT_WAITS, "DATABASE_URL": address.geturl()}


def break_off(proxy: Proxy) -> None:
    proxy.target_port = 1
    proxy.cut()


@pytest.mark.parametrize(
    ("words", "code", "advice"),
    [
        (["bill", "2026-05"], 1, "Nobody was enqueued. Bill again once it answers"),
        (["bill", "2026-05", "--dry-run"], 1, "Nobody was enqueued. Bill again once it answers"),
        (["run_status"], 4, "Nothing is known of the run for now; ask again."),
        (["import_customers", "FILE"], 4, "0 rows taken before that; import FILE again"),
        (["after_failover"], 1, "Not all was put right, and nobody works on until it is: run this again"),
        (["rescue", "--once"], 1, "The pass could not be finished"),
        (["leases", "ls"], 4, "The database does not answer as it should"),
        (["outbox", "status"], 75, "the database does not answer as it should"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_database_that_is_away_is_said_in_one_sentence(
    processes: Processes, line: Line, tmp_path: Path, words: list[str], code: int, advice: str
) -> None:
    file = tmp_path / "customers.csv"
    file.write_text("code,name,email,currency\nA,Ann,a@example.com,EUR\n")
    proxy, environment = line
    break_off(proxy)
    ended = processes.start(*(str(file) if word == "FILE" else word for word in words), env=environment)
    assert ended.wait() == code
    assert advice.replace("FILE", str(file)) in ended.output()
    assert "Traceback" not in ended.output()


def test_wait_says_that_no_worker_has_begun(processes: Processes, item: Item) -> None:
    bill = processes.start("bill", "2026-05", "--wait")
    bill.wait_for_line("1 open; no worker has begun: manage.py rundramatiq runs them", 40)
    Item.objects.update(outcome="skipped", concluded_at=Now())
    assert bill.wait() == 0


def test_bill_that_does_not_wait_says_that_no_worker_has_begun(processes: Processes, item: Item) -> None:
    bill = processes.start("bill", "2026-05", env=SHORT_WAITS)
    assert bill.wait() == 0
    assert bill.output().splitlines()[-2:] == [
        f"run {item.run_id + 1}, 2026-05: 1 customer enqueued",
        "no worker has begun: manage.py rundramatiq runs them",
    ]


def test_wait_goes_on_through_an_outage_of_the_database(processes: Processes, line: Line, item: Item) -> None:
    proxy, environment = line
    bill = processes.start("bill", "2026-05", "--wait", env=environment)
    bill.wait_for_line("1 customer enqueued")
    port = proxy.target_port
    break_off(proxy)
    bill.wait_for_line("Still waiting: The database does not answer as it should")
    proxy.target_port = port
    Item.objects.update(outcome="skipped", concluded_at=Now())
    assert bill.wait() == 0
    assert "1 skipped" in bill.output()


def test_wait_through_a_long_outage_ends_and_says_that_the_run_is_planned(
    processes: Processes, line: Line, item: Item
) -> None:
    proxy, environment = line
    bill = processes.start("bill", "2026-05", "--wait", env={**environment, "TEST_DATABASE_PATIENCE": "1"})
    bill.wait_for_line("1 customer enqueued")
    break_off(proxy)
    assert bill.wait() == 4
    assert f"Run {Run.objects.latest('pk').pk} is planned and goes on once it answers" in bill.output()
    assert "Traceback" not in bill.output()


@pytest.mark.parametrize("words", [["bill", "2026-05"], ["rescue", "--once"]], ids=lambda words: words[0])
def test_tables_that_were_never_made_are_said_in_one_sentence(
    processes: Processes, line: Line, words: list[str]
) -> None:
    _, environment = line
    url = urlsplit(environment["DATABASE_URL"])._replace(path="/postgres").geturl()
    ended = processes.start(*words, env={**environment, "DATABASE_URL": url})
    assert ended.wait() == 1
    assert "database lacks a table (relation" in ended.output()
    assert "run manage.py migrate first." in ended.output()
    assert "Traceback" not in ended.output()


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


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 second invoices"), (1, "1 second invoice"), (2, "2 second invoices")]
)
def test_one_thing_is_not_called_many(count: int, text: str) -> None:
    assert counted(count, "second invoice") == text


def test_rescuer_goes_on_through_an_outage_of_the_database(processes: Processes, line: Line, item: Item) -> None:
    proxy, environment = line
    port = proxy.target_port
    rescue = processes.start("rescue", "--watch", "--interval", "0.2", env=environment)
    rescue.wait_for_line("enqueued again: 0 abandoned, 1 stalled")
    break_off(proxy)
    rescue.wait_for_line("The pass could not be finished and is done again")
    proxy.target_port = port
    Item.objects.update(enqueued_at=None, rescues=0)
    wait_until(lambda: Item.objects.get().rescues == 1)
    rescue.terminate()
    assert rescue.wait() == 0
    assert "Traceback" not in rescue.output()


@pytest.mark.parametrize("words", [["bill", "2026-05"], ["rundramatiq"]], ids=lambda words: words[0])
def test_nothing_starts_with_a_sender_that_is_no_address(
    processes: Processes, tax: TaxService, words: list[str]
) -> None:
    make_customer()
    ended = processes.start(*words, env={**SHORT_WAITS, "DEFAULT_FROM_EMAIL": "nobody"})
    assert ended.wait() == 1
    assert "(billing.E003) DEFAULT_FROM_EMAIL cannot be the sender of invoices" in ended.output()
    assert "Traceback" not in ended.output()
    assert not Run.objects.exists()


# Arguments


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["bill", "May"], "'May' is not a period; write a month such as 2026-05"),
        (["bill", "2026-05-01/2026-05-32"], "'2026-05-01/2026-05-32' is not a period: "),
        (["bill", "2026-05-16/2026-05-01"], "'2026-05-16/2026-05-01' is not a period: it ends before it begins;"),
        (["bill", "2190-05"], "2190-05 lies more than 10 years back or 2 ahead, so nothing was planned"),
        (["bill", "1990-05", "--dry-run"], "if it is meant, say --any-year."),
        (["bill", "2026-05", "--customer", "C1", "\udcff"], "argument --customer: expected UTF-8 text, got '\\udcff'"),
        (["run_status", "0"], "argument RUN: expected a whole number of at least 1, got '0'"),
        (["run_status", "9" * 30], "argument RUN: expected a whole number of at least 1"),
        (["run_status", "--limit=-1"], "argument --limit: expected a whole number of at least 0, got '-1'"),
        (["run_status", "--limit=many"], "argument --limit: expected a whole number of at least 0, got 'many'"),
        *(
            (
                ["rescue", "--watch", f"--interval={text}"],
                f"argument --interval: expected a number from 0.001 to 1e+06, got '{text}'",
            )
            for text in ("0", "-1", "nan", "inf", "soon")
        ),
        (
            ["sample_usage", "--out=x", "--period=2026-13"],
            "argument --period: expected a month such as 2026-05, got '2026-13'",
        ),
        (["sample_usage", "--out=x", "--period=2026-05-01/2026-05-03"], "argument --period: expected a month"),
        (
            ["sample_usage", "--out=x", "--period=2026-05", "--customers=0"],
            "argument --customers: expected a whole number of at least 1",
        ),
        (
            ["sample_usage", "--out=x", "--period=2026-05", "--lines=1.5"],
            "argument --lines: expected a whole number of at least 1",
        ),
        (["taxservice", "--port=70000"], "argument --port: expected a whole number from 0 to 65535, got '70000'"),
        (["taxservice", "--fail-rate=nan"], "argument --fail-rate: expected a number from 0 to 1, got 'nan'"),
        (
            ["taxservice", "--latency-per-line-ms=-1"],
            "argument --latency-per-line-ms: expected a number from 0 to 60000",
        ),
        (["taxservice", "--retry-after=-1"], "argument --retry-after: expected a whole number from 0 to 86400"),
        (["mailserver", "--record=x", "--port=x"], "argument --port: expected a whole number from 0 to 65535, got 'x'"),
        (["admin", "--port=0"], "argument --port: expected a whole number from 1 to 65535"),
        (["demo", "--customers=0"], "argument --customers: expected a whole number of at least 1"),
        (["replay", "--workers=1"], "argument --workers: expected a whole number of at least 2"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_argument_that_cannot_be_meant_is_refused_in_one_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(CommandError) as refused:
        call_command(*words, skip_checks=True)
    assert sentence in str(refused.value)


@pytest.mark.django_db
def test_period_far_off_is_billed_when_it_is_meant() -> None:
    make_customer()
    out = io.StringIO()
    call_command("bill", "1990-05", "--any-year", "--dry-run", stdout=out)
    assert "dry run, 1990-05" in out.getvalue()


def test_mail_server_without_aiosmtpd_says_what_brings_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "billing.simulators.mail_server", raising=False)
    monkeypatch.setitem(sys.modules, "aiosmtpd.smtp", None)
    with pytest.raises(CommandError, match=r"is not installed: pip install -r requirements-dev\.txt"):
        call_command("mailserver", "--port=0", f"--record={tmp_path / 'mails.jsonl'}")


def test_bill_without_redis_plans_the_run_and_says_what_enqueues_it(processes: Processes, tax: TaxService) -> None:
    make_customer()
    bill = processes.start("bill", "2026-05", env=NO_REDIS)
    assert bill.wait(90) == 0  # half a minute is what the broker's client rides out
    assert f"run {Run.objects.get().pk}, 2026-05, is planned: the broker does not answer" in bill.output()
    assert "the rescuer will enqueue what it was not given" in bill.output()
    assert "Traceback" not in bill.output()
