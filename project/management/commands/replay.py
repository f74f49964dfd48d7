"""Replays the incident, and what happens to the protected path in its place: `make replay`."""

import fcntl
import json
import logging
import signal
import sys
import time
from argparse import RawDescriptionHelpFormatter
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing import arguments
from billing.wording import counted
from project.demo.cast import DidNotStart
from project.devservices.errors import DevServicesError
from project.devservices.starting import have_servers
from project.replay import plot, report
from project.replay.crew import CrewFailed
from project.replay.side import NAIVE, OURS, Pace, Played, Progress, Side, play
from project.replay.stage import Stage, StageFailed

PERIOD = "2026-05"
TTL_S = 3.0
PLAIN_LINE_SECONDS = 5.0
BROKEN_PROMISE, TOO_WEAK, INTERRUPTED = 4, 5, 130

EPILOG = f"""\
Bills one sample month twice, on a database and a Redis-like server of its own: first with the lock of the incident
(SET NX EX, the work, DEL, the mail sent directly), then with leases, fences, constraints and the outbox. Time runs
twenty times faster: a lease lasts {TTL_S:g} s. Both sides get the same usage, the same slow tax service, the same
freezes, kills and doubled messages, and the same dispatcher, which sends again whoever has neither an invoice nor a
live lock. Then invoices are counted in the tables, and mails in what the mail server recorded.

example:
  manage.py replay --seed 7 --customers 100

exit codes: 0 all as promised; 1 something could not be started; 4 the protected side made a second invoice, sent a
            second email or lost a customer; 5 the faults were too weak to hurt the naive side; 130 interrupted
"""


class Command(BaseCommand):
    help = "Replays the incident: a naive lock and Invoice Once side by side, under the same faults."
    requires_system_checks = []  # they ask for the servers that this command starts
    interrupted = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.formatter_class = RawDescriptionHelpFormatter
        parser.epilog = EPILOG
        parser.add_argument("--customers", type=arguments.positive, default=220, help="how many (default: %(default)s)")
        parser.add_argument(
            "--workers", type=arguments.whole(2), default=8, help="processes on each side (default: %(default)s)"
        )
        parser.add_argument(
            "--seed",
            type=arguments.whole(-arguments.MOST),
            default=1,
            help="of usage, faults and order (default: %(default)s)",
        )
        parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
        parser.add_argument(
            "--out", type=Path, metavar="DIR", help="for the picture and the logs (default: .local/replay)"
        )

    def handle(self, *args: Any, customers: int, workers: int, seed: int, **options: Any) -> None:
        self.as_json: bool = options["json"]
        logging.getLogger().setLevel(logging.WARNING)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.interrupt)
        have_servers(self.step)
        folder: Path = options["out"] or settings.BASE_DIR / ".local" / "replay"
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with ExitStack() as stack:
                self.be_alone(stack, folder / "lock")
                stage = stack.enter_context(Stage(settings.BASE_DIR, folder, settings.DATABASE_URL))
                naive, ours, pace = self.play_both(stage, customers, workers, seed)
        except (StageFailed, CrewFailed, DidNotStart, DevServicesError) as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            self.stderr.write("\nInterrupted; everything the replay started is stopped.")
            sys.exit(INTERRUPTED)
        picture = folder / "replay.svg"
        sides = [(NAIVE.title, naive.timeline), (OURS.title, ours.timeline)]
        picture.write_text(plot.draw(sides, workers=workers, ttl_s=pace.ttl_s))
        self.sum_up(naive, ours, picture, {"seed": seed, "customers": customers, "workers": workers})

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Note it, and raise; where that is swallowed, in a callback of the interpreter's, the note counts."""
        self.interrupted = True
        raise KeyboardInterrupt

    def be_alone(self, stack: ExitStack, path: Path) -> None:
        """Let one replay at a time use a folder."""
        file = stack.enter_context(path.open("w"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError("Another replay runs in this folder.") from None

    def play_both(self, stage: Stage, customers: int, workers: int, seed: int) -> tuple[Played, Played, Pace]:
        self.step(f"importing the usage of {counted(customers, 'sample customer')}")
        stage.fill(customers, seed, PERIOD)
        lines = stage.lines_per_customer()
        pace = Pace.of(lines, ttl_s=TTL_S, workers=workers)
        naive = self.play_one(NAIVE, stage, pace, lines, workers, seed)
        ours = self.play_one(OURS, stage, pace, lines, workers, seed)
        return naive, ours, pace

    def play_one(self, side: Side, stage: Stage, pace: Pace, lines: dict[int, int], workers: int, seed: int) -> Played:
        self.step(
            f"{side.title}: {counted(workers, 'worker')}, {pace.latency_per_line_ms:g} ms of tax service per line"
        )
        line = ProgressLine(self, len(lines))
        played = play(side, stage, pace, lines, period=PERIOD, seed=seed, workers=workers, progress=line.show)
        line.end()
        if not played.settled:
            self.stderr.write(self.style.WARNING(f"{side.title} was cut off before its queue was empty."))
        return played

    def sum_up(self, naive: Played, ours: Played, picture: Path, parameters: dict[str, int]) -> None:
        if self.as_json:
            self.stdout.write(json.dumps(report.as_json(naive.counts, ours.counts, plot=str(picture), **parameters)))
        else:
            self.stdout.write("\n" + "\n".join(report.table(naive.counts, ours.counts)))
            for sentence in report.explained(ours.counts):
                self.stdout.write(f"\n{sentence}")
            self.stdout.write(f"\nthe leases over time: {picture}\nlogs: {picture.parent}")
        for sentence in report.broken(ours.counts):
            self.stderr.write(self.style.ERROR(f"NOT AS PROMISED: {sentence}"))
        if report.broken(ours.counts):
            sys.exit(BROKEN_PROMISE)
        if report.too_weak(naive.counts):
            self.stderr.write(
                self.style.ERROR("The faults were too weak: the naive lock got away with it. Try --seed.")
            )
            sys.exit(TOO_WEAK)

    def step(self, text: str) -> None:
        self.stderr.write(self.style.MIGRATE_HEADING(f"* {text}"))


class ProgressLine:
    """One line that is written over on a terminal, and now and then a new one elsewhere."""

    def __init__(self, command: Command, customers: int) -> None:
        self._command = command
        self._customers = customers
        self._on_terminal = command.stderr.isatty()
        self._latest, self._shown = "", ""
        self._shown_at = 0.0

    def show(self, now: Progress) -> None:
        if self._command.interrupted:
            raise KeyboardInterrupt
        text = (
            f"  {now.seconds:3.0f} s  {now.invoiced} of {counted(self._customers, 'customer')} invoiced, "
            f"{counted(now.freezes, 'freeze')}, {counted(now.kills, 'kill')}"
        )
        if now.done_s is not None:
            text += f"; all invoiced and mailed after {now.done_s:.1f} s"
        self._latest = text
        if self._on_terminal:
            self._command.stderr.write(f"\r\x1b[K{text}", ending="")
        elif time.monotonic() - self._shown_at > PLAIN_LINE_SECONDS:
            self._command.stderr.write(text)
            self._shown, self._shown_at = text, time.monotonic()

    def end(self) -> None:
        if self._on_terminal:
            self._command.stderr.write("")
        elif self._shown != self._latest:
            self._command.stderr.write(self._latest)
