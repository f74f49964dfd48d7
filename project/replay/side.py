"""One side of the replay, from the first message to the last mail."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg
import redis

from project.broker import make_broker
from project.demo.cast import Cast
from project.replay import counting, schedule, timeline
from project.replay.counting import Books, Counts
from project.replay.crew import Crew
from project.replay.dispatcher import Dispatcher, Work
from project.replay.stage import Stage

PASS_SECONDS = 0.2
LEASES_TO_SETTLE = 20
"""How many leases a run may take beyond its work: messages of killed workers are delivered again only after a while."""


@dataclass(frozen=True)
class Side:
    name: str
    title: str
    work: Work
    books: Books
    drained: str = "SELECT 0"
    """SQL that gives how many mails are still on their way."""


NAIVE = Side(
    "naive",
    "naive lock",
    Work(
        queue="replay-naive",
        actor="invoice_naively",
        lock_key="naive:{customer}:{period}",
        invoiced="SELECT DISTINCT customer::bigint FROM naive_invoice",
    ),
    Books(
        invoices="SELECT customer::bigint, count(*) FROM naive_invoice GROUP BY 1",
        in_doubt="SELECT 0",
        renews=False,
    ),
)
OURS = Side(
    "ours",
    "Invoice Once",
    Work(
        queue="billing",
        actor="invoice_customer",
        lock_key="lease:{{customer:{customer}}}",
        invoiced="SELECT customer_id FROM billing_invoice WHERE status <> 'void'",
    ),
    Books(
        invoices="SELECT customer_id, count(*) FROM billing_invoice WHERE status <> 'void' GROUP BY 1",
        in_doubt="SELECT count(*) FROM outbox_message WHERE state = 'in_doubt'",
        renews=True,
    ),
    drained="SELECT count(*) FROM outbox_message WHERE state IN ('pending', 'claimed', 'sending')",
)


@dataclass(frozen=True)
class Pace:
    """Time, scaled down: the lease, and how slow the tax service is."""

    ttl_s: float
    latency_per_line_ms: float
    lines_per_request: int
    faults_until_s: float

    @classmethod
    def of(cls, lines: dict[int, int], *, ttl_s: float, workers: int) -> "Pace":
        """Return the pace at which the largest invoice lasts about three and a half leases."""
        per_line_s = 3.5 * ttl_s / max(lines.values())
        return cls(
            ttl_s=ttl_s,
            latency_per_line_ms=round(per_line_s * 1000, 3),
            lines_per_request=max(1, int(ttl_s * 0.15 / per_line_s)),
            faults_until_s=sum(lines.values()) * per_line_s / workers + 2 * ttl_s,
        )


@dataclass(frozen=True)
class Progress:
    """How far a side is after `seconds`; `done_s` is after how many all was invoiced and mailed, once it is."""

    invoiced: int
    freezes: int
    kills: int
    seconds: float
    done_s: float | None


@dataclass(frozen=True)
class Played:
    counts: Counts
    timeline: timeline.Timeline
    settled: bool
    """Whether the queue was empty at the end; else the run was cut off."""


def play(
    side: Side,
    stage: Stage,
    pace: Pace,
    lines: dict[int, int],
    *,
    period: str,
    seed: int,
    workers: int,
    progress: Callable[[Progress], None],
) -> Played:
    """Run one side to its end and count it."""
    logs = stage.folder / side.name
    logs.mkdir()
    record, tax_log, events = logs / "mails.jsonl", logs / "taxes.jsonl", logs / "events.jsonl"
    with Cast(stage.base, logs) as cast:
        environment = {**stage.environment, **_services(cast, side, stage, pace, seed, record, tax_log)}
        with (
            Crew(workers, side.work.queue, events, base=stage.base, environment=environment) as crew,
            redis.Redis.from_url(stage.redis_url) as client,
            psycopg.connect(stage.database_url, autocommit=True) as database,
        ):
            broker = make_broker(stage.redis_url)
            dispatcher = Dispatcher(
                side.work,
                sorted(lines),
                period,
                broker=broker,
                client=client,
                database=database,
                seed=seed,
                ttl_s=pace.ttl_s,
                workers=workers,
            )
            began = time.monotonic()
            began_at = timeline.now()
            crew.strike(schedule.faults(seed, workers=workers, ttl_s=pace.ttl_s, until_s=pace.faults_until_s))
            done_s: float | None = None
            give_up_s = 4 * pace.faults_until_s + LEASES_TO_SETTLE * pace.ttl_s
            while True:
                missing = dispatcher.pass_once()
                seconds = time.monotonic() - began
                on_its_way = database.execute(side.drained.encode()).fetchone()
                done = not missing and on_its_way == (0,)
                done_s = (done_s or seconds) if done else None
                progress(Progress(len(lines) - missing, crew.freezes, crew.kills, seconds, done_s))
                over = seconds > pace.faults_until_s and not crew.is_struck
                settled = done and over and not dispatcher.unfinished()
                if settled or seconds > give_up_s:
                    break
                time.sleep(PASS_SECONDS)
            broker.close()
    lived = timeline.read(events, began_at)
    counts = counting.count(
        side.books,
        database_url=stage.database_url,
        mail_record=record,
        tax_log=tax_log,
        timeline=lived,
        ttl_s=pace.ttl_s,
        done_s=round(done_s or seconds, 1),
    )
    return Played(counts, lived, settled)


def _services(
    cast: Cast, side: Side, stage: Stage, pace: Pace, seed: int, record: Path, tax_log: Path
) -> dict[str, str]:
    """Start tax service, mail server and, where mail goes through it, the drainer; return how to reach them."""
    latency = ("--latency-per-line-ms", str(pace.latency_per_line_ms))
    tax = ("taxservice", "--port", "0", "--seed", str(seed), *latency, "--request-log", str(tax_log))
    cast.start("taxservice", *tax, env=stage.environment)
    cast.start("mailserver", "mailserver", "--port", "0", "--record", str(record), env=stage.environment)
    tax_address = cast.wait_for("taxservice", r"^listening on (\S+)$")
    mail_host, _, mail_port = cast.wait_for("mailserver", r"^listening on (\S+)$").rpartition(":")
    environment = {
        "BILLING_TAX_URL": f"http://{tax_address}",
        "BILLING_TAX_TIMEOUT_SECONDS": str(pace.ttl_s * 0.3),
        "BILLING_TAX_LINES_PER_REQUEST": str(pace.lines_per_request),
        "LEASES_TTL_SECONDS": str(pace.ttl_s),
        "dramatiq_queue_prefetch": "1",  # a worker busy for long should keep few others waiting
        "EMAIL_HOST": mail_host,
        "EMAIL_PORT": mail_port,
    }
    if side is OURS:
        cast.start("drainer", "drain_outbox", "--watch", env={**stage.environment, **environment})
    return environment
