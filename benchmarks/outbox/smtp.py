"""Real mail over loopback: a drainer with four connections beside two bare smtplib loops on four.

    DATABASE_URL=... python -m benchmarks.outbox.smtp [--messages 1000] [--rounds 3]

The first loop sends and writes nothing down. The second one commits an intent before each mail, together with the mark
of the one before, by bare psycopg, each thread on a connection of its own: what no drainer with our promise can beat.
The drainer's settings are the defaults (concurrency 4, an intent per message), and at last a micro-batch of 10. The
server is a process of its own: `manage.py mailserver`.
"""

import argparse
import os
import re
import smtplib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.outbox.settings")

import django

django.setup()

import psycopg  # noqa: E402
from django.conf import settings  # noqa: E402
from django.db import transaction  # noqa: E402

import outbox  # noqa: E402
from benchmarks.outbox import table  # noqa: E402
from benchmarks.outbox.raw import MARK_AND_INTEND, claim_all, database  # noqa: E402
from outbox.drain import Drainer, Until  # noqa: E402
from outbox.lane import Pace  # noqa: E402

CONNECTIONS = 4
MAIL = {"to": "anna@example.org", "from": "b@example.com", "subject": "Invoice 7", "text": "Please pay.\n" * 20}


def ours(raw: str, count: int, micro_batch: int | None = None) -> float:
    table.empty()
    with transaction.atomic():
        for number in range(count):
            outbox.publish("email", MAIL, dedupe_key=f"k{number}")
    table.settle()
    pace = Pace(100, micro_batch, CONNECTIONS, timedelta(seconds=60), timedelta(seconds=1))
    drainer = Drainer(using="default", names=["email"], pace=pace, until=Until.EMPTY)
    began = time.perf_counter()
    report = drainer.run()
    seconds = time.perf_counter() - began
    assert report.tally["sent"] == count, report
    return seconds


def ours_by_ten(raw: str, count: int) -> float:
    return ours(raw, count, 10)


def bare(raw: str, count: int) -> float:
    def run(share: int) -> None:
        with smtplib.SMTP(settings.EMAIL_HOST, settings.EMAIL_PORT) as smtp:
            for _ in range(share):
                smtp.sendmail("b@example.com", ["anna@example.org"], raw)

    return in_threads(run, [count // CONNECTIONS] * CONNECTIONS)


def declared(raw: str, count: int) -> float:
    """The bare loop, with intent and mark."""
    table.empty()
    table.fill(count)
    table.settle()
    ids = claim_all()

    def run(share: list[int]) -> None:
        before: int | None = None
        with (
            psycopg.connect(**database(), autocommit=True) as own,
            smtplib.SMTP(settings.EMAIL_HOST, settings.EMAIL_PORT) as smtp,
        ):
            for id in share:
                own.execute(MARK_AND_INTEND, {"before": before, "id": id})
                smtp.sendmail("b@example.com", ["anna@example.org"], raw)
                before = id
            own.execute(MARK_AND_INTEND, {"before": before, "id": None})

    return in_threads(run, [ids[number::CONNECTIONS] for number in range(CONNECTIONS)])


def in_threads(run: Callable[[Any], None], shares: Iterable[Any]) -> float:
    threads = [threading.Thread(target=run, args=[share]) for share in shares]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.jsonl"
        command = [sys.executable, "manage.py", "mailserver", "--port", "0", "--record", str(record)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout
            found = re.search(r"127\.0\.0\.1:(\d+)", server.stdout.readline())
            assert found
            settings.EMAIL_HOST, settings.EMAIL_PORT, settings.EMAIL_TIMEOUT = "127.0.0.1", int(found[1]), 10
            raw = outbox_raw()
            sides = {"drainer": ours, "smtplib": bare, "smtplib with intents": declared, "micro-batch 10": ours_by_ten}
            speeds: dict[str, list[float]] = {name: [] for name in sides}
            for _ in range(options.rounds):
                for name, run in sides.items():
                    speeds[name].append(options.messages / run(raw, options.messages))
        finally:
            server.terminate()
            server.wait()
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    shown = "   ".join(f"{name} {value:,.0f}/s" for name, value in medians.items())
    ratios = " ".join(f"{medians['drainer'] / value:.2f}" for value in list(medians.values())[1:])
    print(f"{shown}   ratio {ratios}   load {os.getloadavg()[0]:.1f}")


def outbox_raw() -> str:
    """The same bytes for both sides."""
    from outbox.channels.email_rendering import render

    return render(MAIL, default_from="")["raw"]


if __name__ == "__main__":
    main()
