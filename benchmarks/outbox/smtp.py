"""Real mail over loopback: a drainer with four connections beside a bare smtplib loop on four.

    DATABASE_URL=... python -m benchmarks.outbox.smtp [--messages 1000] [--rounds 3]

The server is a process of its own: `manage.py mailserver`.
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
from datetime import timedelta
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.outbox.settings")

import django

django.setup()

from django.conf import settings  # noqa: E402
from django.db import transaction  # noqa: E402

import outbox  # noqa: E402
from benchmarks.outbox import table  # noqa: E402
from outbox.drain import Drainer, Until  # noqa: E402
from outbox.lane import Pace  # noqa: E402

CONNECTIONS = 4
MAIL = {"to": "anna@example.org", "from": "b@example.com", "subject": "Invoice 7", "text": "Please pay.\n" * 20}


def ours(raw: str, count: int) -> float:
    table.empty()
    with transaction.atomic():
        for number in range(count):
            outbox.publish("email", MAIL, dedupe_key=f"k{number}")
    table.settle()
    pace = Pace(100, None, CONNECTIONS, timedelta(seconds=60), timedelta(seconds=1))
    drainer = Drainer(using="default", names=["email"], pace=pace, until=Until.EMPTY)
    began = time.perf_counter()
    report = drainer.run()
    seconds = time.perf_counter() - began
    assert report.tally["sent"] == count, report
    return seconds


def bare(raw: str, count: int) -> float:
    def run(share: int) -> None:
        with smtplib.SMTP(settings.EMAIL_HOST, settings.EMAIL_PORT) as smtp:
            for _ in range(share):
                smtp.sendmail("b@example.com", ["anna@example.org"], raw)

    threads = [threading.Thread(target=run, args=[count // CONNECTIONS]) for _ in range(CONNECTIONS)]
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
            speeds: dict[str, list[float]] = {"ours": [], "bare": []}
            for _ in range(options.rounds):
                for name, run in {"ours": ours, "bare": bare}.items():
                    speeds[name].append(options.messages / run(raw, options.messages))
        finally:
            server.terminate()
            server.wait()
    first, second = (statistics.median(values) for values in speeds.values())
    print(f"drainer {first:,.0f}/s   bare smtplib {second:,.0f}/s   ratio {first / second:.2f}")


def outbox_raw() -> str:
    """The same bytes for both sides."""
    from outbox.channels.email_rendering import render

    return render(MAIL, default_from="")["raw"]


if __name__ == "__main__":
    main()
