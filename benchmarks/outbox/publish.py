"""publish() beside a plain INSERT of the same row, each in a transaction of its own; and its statement alone.

DATABASE_URL=... python -m benchmarks.outbox.publish [--messages 200] [--rounds 15]
"""

import argparse
import json
import os
import statistics
import time

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.outbox.settings")

import django

django.setup()

from django.db import connection, transaction  # noqa: E402

import outbox  # noqa: E402
from benchmarks.outbox import table  # noqa: E402
from outbox.statements import statement  # noqa: E402

CONTENT = {"raw": "x" * 450}
INSERT = "INSERT INTO outbox_message (channel, dedupe_key, digest, payload) VALUES ('noop', %s, %s, %s) RETURNING id"


def publish(count: int) -> None:
    for number in range(count):
        with transaction.atomic():
            outbox.publish("noop", CONTENT, dedupe_key=f"k{number}")


def insert(count: int) -> None:
    for number in range(count):
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(INSERT, [f"k{number}", "d" * 64, json.dumps(CONTENT)])
            cursor.fetchone()


def least(count: int) -> None:
    """What publish() asks of the database, and nothing of what it does besides."""
    values = {"channel": "noop", "digest": "d" * 64, "payload": json.dumps(CONTENT)}
    for number in range(count):
        with transaction.atomic(), connection.cursor() as cursor:
            given = {**values, "dedupe_key": f"k{number}", "not_before": None, "deadline": None}
            cursor.execute(statement("publish"), given)
            cursor.fetchone()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    speeds: dict[str, list[float]] = {"publish": [], "insert": [], "least": []}
    for _ in range(options.rounds):
        for name, run in {"publish": publish, "insert": insert, "least": least}.items():
            table.empty()
            began = time.perf_counter()
            run(options.messages)
            speeds[name].append(options.messages / (time.perf_counter() - began))
    ours, plain, alone = (statistics.median(values) for values in speeds.values())
    print(f"publish() {ours:,.0f}/s   plain insert {plain:,.0f}/s   ratio {ours / plain:.2f}")
    print(f"its statement alone {alone:,.0f}/s   ratio {alone / plain:.2f}")


if __name__ == "__main__":
    main()
