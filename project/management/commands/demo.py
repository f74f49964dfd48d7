"""Shows the whole path at work: `make demo`."""

import fcntl
import logging
import signal
import sys
import time
from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing import arguments
from billing.wording import counted
from project.demo.cast import Cast, DidNotStart
from project.devservices.starting import have_servers

WORKERS = 8
SEND_SECONDS = 60.0
# The largest customers have some 500 lines and outlast this lease, which is renewed meanwhile. A request to the tax
# service takes 25 x 25 ms, well below a third of the lease.
LATENCY_PER_LINE_MS = 25
PACE = {"LEASES_TTL_SECONDS": "8", "BILLING_TAX_LINES_PER_REQUEST": "25", "BILLING_TAX_TIMEOUT_SECONDS": "2"}

BROKEN_PROMISE = 4
INTERRUPTED = 130


class Command(BaseCommand):
    help = "Bills a month of sample usage with eight workers, a drainer, a slow tax service and a mail server."
    requires_system_checks = []  # they ask for the servers that this command starts

    def add_arguments(self, parser: CommandParser) -> None:
        parser.formatter_class = RawDescriptionHelpFormatter
        parser.epilog = (
            "example:\n"
            "  manage.py demo --customers 60\n\n"
            "Each demonstration bills the next month that is not billed yet, then bills it again.\n\n"
            "exit codes: 0 all as promised; 1 something could not be started; 4 an invoice or email is missing or\n"
            "            doubled; 130 interrupted"
        )
        parser.add_argument("--customers", type=arguments.positive, default=100, help="how many (default: %(default)s)")

    def handle(self, *args: Any, customers: int, **options: Any) -> None:
        if not settings.DEBUG:
            raise CommandError("The demonstration writes sample customers, so it needs DEBUG=on.")
        logging.getLogger().setLevel(logging.WARNING)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler)
        have_servers(self.step)
        logs = settings.BASE_DIR / ".local" / "demo"
        logs.mkdir(parents=True, exist_ok=True)
        try:
            with alone(logs):
                self.show(customers, logs)
        except DidNotStart as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            self.stdout.write("\nInterrupted: workers, drainer, tax service and mail server are stopped.")
            self.say_how_to_stop()
            sys.exit(INTERRUPTED)

    def show(self, customers: int, logs: Path) -> None:
        self.step("preparing the database")
        call_command("migrate", verbosity=0)

        # They read the database, whose address and tables are only there now.
        from billing.models import Customer
        from project.demo import result

        if Customer.objects.exclude(email__endswith=".example").exists():
            raise CommandError("This database has customers of its own: give the demonstration an empty one.")
        period = result.next_month()
        record = logs / "mails.jsonl"

        with Cast(settings.BASE_DIR, logs) as cast:
            self.step(f"starting {WORKERS} workers, a drainer, a slow tax service and a mail server")
            self.start_cast(cast, record)

            self.step(f"importing the usage of {counted(customers, 'sample customer')} in {period}")
            self.import_sample(customers, str(period), logs / "sample")
            cast.wait_for("workers", "Worker process is ready")

            self.step(f"billing {period}: the tax service takes {LATENCY_PER_LINE_MS} ms per line")
            began = time.monotonic()
            self.bill(str(period))
            self.wait_until_sent(result.unsent)
            seconds = time.monotonic() - began
            first = result.count(period, record)

            self.step(f"billing {period} again, as if somebody had pressed the button twice")
            self.bill(str(period))
            self.wait_until_sent(result.unsent)
            second = result.count(period, record)

        self.sum_up(first, second, seconds, str(period), record, logs)

    def start_cast(self, cast: Cast, record: Path) -> None:
        cast.start(
            "taxservice",
            *("taxservice", "--port", "0", "--latency-per-line-ms", str(LATENCY_PER_LINE_MS), "--fail-rate", "0.01"),
            env={},
        )
        cast.start("mailserver", "mailserver", "--port", "0", "--record", str(record), env={})
        tax_address = cast.wait_for("taxservice", r"^listening on (\S+)$")
        mail_host, _, mail_port = cast.wait_for("mailserver", r"^listening on (\S+)$").rpartition(":")
        cast.start("drainer", "drain_outbox", "--watch", env={"EMAIL_HOST": mail_host, "EMAIL_PORT": mail_port})
        cast.start(
            "workers",
            *("rundramatiq", "--processes", str(WORKERS), "--threads", "1", "--shutdown-timeout", "5"),
            env={"BILLING_TAX_URL": f"http://{tax_address}", **PACE},
        )

    def import_sample(self, customers: int, period: str, folder: Path) -> None:
        sample = ["--customers", str(customers), "--period", period, "--out", str(folder)]
        call_command("sample_usage", *sample, stdout=Quiet())
        for command, name in (
            ("import_customers", "customers"),
            ("import_prices", "prices"),
            ("import_usage", "usage"),
        ):
            self.stdout.write(f"{name}: ", ending="")
            call_command(command, str(folder / f"{name}.csv"), stdout=self.stdout)

    def bill(self, period: str) -> None:
        try:
            call_command("bill", period, wait=True, stdout=self.stdout, stderr=self.stderr)
        except SystemExit as ended:
            if ended.code == INTERRUPTED:
                raise KeyboardInterrupt from None
            # Parked customers are in the report, and in what is counted.

    def wait_until_sent(self, unsent: Callable[[], int]) -> None:
        deadline = time.monotonic() + SEND_SECONDS
        while unsent() and time.monotonic() < deadline:
            time.sleep(0.2)

    def sum_up(self, first: Any, second: Any, seconds: float, period: str, record: Path, logs: Path) -> None:
        faults = second.faults()
        if second.invoices != first.invoices or second.mails != first.mails:
            faults.append("billing twice changed something")
        here = Path.cwd()
        python, record, logs = (shown(path, here) for path in (Path(sys.executable), record, logs))
        self.stdout.write(
            f"\n{self.style.MIGRATE_HEADING(period)}: {counted(first.invoices, 'invoice')} and "
            f"{counted(len(first.mails), 'email')} in {seconds:.0f} s; "
            f"billed again: {counted(second.invoices - first.invoices, 'more invoice')}, "
            f"{counted(second.mails.total() - first.mails.total(), 'more email')}."
        )
        for fault in faults:
            self.stdout.write(self.style.ERROR(f"NOT AS PROMISED: {fault}"))
        self.stdout.write(
            "\nwhere to look:\n"
            f"  {record}   every mail the mail server took over\n"
            f"  {logs}/workers.log   what the workers did, with lease and token on each line\n"
            f"  {python} manage.py run_status   the run, customer by customer where something is odd\n"
            "  make admin   the admin, with a user whose password it prints"
        )
        self.stdout.write(
            "\nnext: make replay   two minutes: the incident with its naive lock, beside what happens here in its place"
        )
        self.say_how_to_stop()
        if faults:
            sys.exit(BROKEN_PROMISE)

    def say_how_to_stop(self) -> None:
        if settings.DEVSERVICES:
            python = shown(Path(sys.executable), Path.cwd())
            self.stdout.write(
                f"\nPostgreSQL and Valkey stay up: {python} manage.py devservices down stops them, "
                "make clean also removes the data."
            )

    def step(self, text: str) -> None:
        self.stdout.write(self.style.MIGRATE_HEADING(f"* {text}"))
        self.stdout.flush()


class Quiet:
    """Takes what a command writes, and shows it to nobody."""

    def write(self, text: str) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""


def shown(path: Path, folder: Path) -> Path:
    """Return a path as one types it in `folder`."""
    return path.relative_to(folder) if path.is_relative_to(folder) else path


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let one demonstration at a time use a checkout."""
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError("Another demonstration runs in this folder.") from None
        yield
