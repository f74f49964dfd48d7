"""Drainers killed at random moments: messages lost, arrived twice, and in doubt, counted at the receiver.

    DATABASE_URL=... python -m benchmarks.outbox.crashes [--kills 20] [--messages 400]

Each drainer sends real mail to `manage.py mailserver`, and gets SIGKILL after a random time; the next one goes on.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.outbox.settings")

import django

django.setup()

from django.db import transaction  # noqa: E402

import outbox  # noqa: E402
from benchmarks.outbox import table  # noqa: E402
from outbox.models import Message  # noqa: E402

DRAIN = [sys.executable, "manage.py", "drain_outbox", "--channel", "email", "--claim-ttl", "3", "--skip-checks"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--messages", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    table.empty()
    with transaction.atomic():
        for number in range(options.messages):
            mail = {"to": "anna@example.org", "from": "b@example.com", "subject": f"Invoice {number}", "text": "Pay."}
            outbox.publish("email", mail, dedupe_key=f"k{number}")
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.jsonl"
        command = [sys.executable, "manage.py", "mailserver", "--port", "0", "--record", str(record)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout
            found = re.search(r"127\.0\.0\.1:(\d+)", server.stdout.readline())
            assert found
            env = {**os.environ, "EMAIL_HOST": "127.0.0.1", "EMAIL_PORT": found[1], "EMAIL_TIMEOUT_SECONDS": "1"}
            rate = ["--rate", str(options.messages / options.kills / 1.5)]
            for _ in range(options.kills):
                drainer = subprocess.Popen([*DRAIN, "--watch", *rate], env=env, stdout=subprocess.DEVNULL)
                before = received(record)
                while received(record) == before and drainer.poll() is None and table.left():
                    time.sleep(0.01)
                time.sleep(dice.uniform(0.0, 1.5))
                drainer.send_signal(signal.SIGKILL)
                drainer.wait()
            while Message.objects.filter(state__in=["pending", "claimed", "sending"]).exists():
                subprocess.run([*DRAIN, "--until-empty"], env=env, stdout=subprocess.DEVNULL, check=False)
        finally:
            server.terminate()
            server.wait()
        arrived = Counter(json.loads(line)["message_id"] for line in record.read_text().splitlines())
    states: Counter[str] = Counter()
    lost = 0
    for state, payload in Message.objects.values_list("state", "payload"):
        states[state] += 1
        assert payload
        lost += state != "in_doubt" and payload["message_id"] not in arrived
    print(f"{options.kills} kills, seed {options.seed}, {options.messages} messages: {lost} lost,")
    print(f"{sum(arrived.values()) - len(arrived)} arrived twice, states {dict(states)}")


def received(record: Path) -> int:
    return len(record.read_text().splitlines()) if record.exists() else 0


if __name__ == "__main__":
    main()
