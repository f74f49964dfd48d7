"""How fast drainers move messages that cost nothing to hand over, beside a bare psycopg loop in the same run.

    DATABASE_URL=... python -m benchmarks.outbox.drain [--messages 20000] [--rounds 3] [--only NAME]

Every figure is the median of the rounds; both sides of a ratio run in turn, so that a busy machine slows both.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.outbox.settings")

import django

django.setup()

import psycopg  # noqa: E402

from benchmarks.outbox import raw, table  # noqa: E402
from outbox.drain import Drainer, Until  # noqa: E402
from outbox.lane import Pace  # noqa: E402

BATCH = 500


def ours(micro_batch: int, concurrency: int = 1) -> float:
    """Drain everything with one drainer in this process; the seconds it took."""
    pace = Pace(BATCH, micro_batch, concurrency, timedelta(seconds=60), timedelta(seconds=1))
    drainer = Drainer(using="default", names=["noop"], pace=pace, until=Until.EMPTY)
    began = time.perf_counter()
    drainer.run()
    return time.perf_counter() - began


def processes(count: int, micro_batch: int) -> float:
    """Drain everything with several processes, from when the last of them is ready."""
    code = (
        "import sys; from benchmarks.outbox.drain import ours;"
        f"print('ready', flush=True); sys.stdin.readline(); print(ours({micro_batch}))"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    for process in started:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    began = time.perf_counter()
    for process in started:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in started:
        assert process.stdout
        process.stdout.readline()
    seconds = time.perf_counter() - began
    for process in started:
        process.wait()
    return seconds


@contextmanager
def held_xmin() -> Iterator[None]:
    """An idle transaction with a snapshot, as a forgotten session or a long report has one."""
    with psycopg.connect(**raw.database()) as other:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1")
        yield


Side = tuple[Callable[[], None], Callable[[], float]]


def compare(what: str, count: int, rounds: int, sides: dict[str, Side]) -> None:
    """Fill and run the sides in turn, and print messages per second of each, and the first by each of the others."""
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, (fill, run) in sides.items():
            table.empty()
            fill()
            table.settle()
            speeds[name].append(count / run())
            assert table.left() == 0
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    first = next(iter(medians.values()))
    shown = "   ".join(f"{name} {value:9,.0f}/s" for name, value in medians.items())
    ratios = " ".join(f"{first / value:.2f}" for value in list(medians.values())[1:])
    print(f"{what:16} {shown}   ratio {ratios}   load {os.getloadavg()[0]:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only")
    options = parser.parse_args()
    count = options.messages

    def plain() -> None:
        table.fill(count)

    def crowded() -> None:
        table.fill(1_000_000, due="now() + interval '1 year'", prefix="future")
        table.fill(1_000_000, state="sent", prefix="sent")
        table.fill(count)

    def held() -> float:
        with held_xmin():
            return ours(50)

    free = partial(ours, 50)
    measures: dict[str, dict[str, Side]] = {
        f"intent-per-{k}": {"ours": (plain, partial(ours, k)), "raw": (plain, partial(raw.drain, BATCH, k))}
        for k in (1, 10, 50)
    }
    measures["four-drainers"] = {
        "four": (plain, partial(processes, 4, 50)),
        "one": (plain, partial(processes, 1, 50)),
    }
    measures["held-xmin"] = {"held": (plain, held), "free": (plain, free)}
    measures["crowded"] = {"crowded": (crowded, free), "empty": (plain, free)}
    measures["crowded-held"] = {"both": (crowded, held), "neither": (plain, free)}
    for name, sides in measures.items():
        if options.only in (None, name):
            compare(name, count, options.rounds, sides)


if __name__ == "__main__":
    main()
