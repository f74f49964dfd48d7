"""Enqueues every customer who has neither an invoice nor a live lock, as the incident's dispatcher did."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import dramatiq
import psycopg
import redis

from project.replay.schedule import is_doubled

AGAIN_SECONDS = 0.5
PATIENCE_LEASES = 5


@dataclass(frozen=True)
class Work:
    """What one side is made of, as the dispatcher sees it from outside."""

    queue: str
    actor: str
    lock_key: str
    """Of a customer's lock or lease: `{customer}` and `{period}` are filled in."""
    invoiced: str
    """SQL that gives the ids of the customers who are invoiced."""


class Dispatcher:
    """Keeps the queue short but never empty, and sends a customer again who was being worked on and has no lock now.

    Whoever merely waits for a worker is not sent again, before it has waited for `PATIENCE_LEASES`. Some messages are
    sent twice, as brokers do.
    """

    def __init__(
        self,
        work: Work,
        customers: Sequence[int],
        period: str,
        *,
        broker: dramatiq.Broker,
        client: "redis.Redis",
        database: "psycopg.Connection",
        seed: int,
        ttl_s: float,
        workers: int,
    ) -> None:
        self._work = work
        self._customers = list(customers)
        random.Random(f"{seed}:order").shuffle(self._customers)  # noqa: S311 - an order, no secret
        self._period = period
        self._broker = broker
        self._client = client
        self._database = database
        self._seed = seed
        self._ttl_s = ttl_s
        self._room = 2 * workers
        self._sent_at: dict[int, float] = {}
        self._begun: set[int] = set()
        broker.declare_queue(work.queue)

    def pass_once(self) -> int:
        """Enqueue what is due and return how many customers have no invoice yet."""
        with self._database.cursor() as cursor:
            cursor.execute(self._work.invoiced.encode())
            invoiced = {row[0] for row in cursor.fetchall()}
        missing = [customer for customer in self._customers if customer not in invoiced]
        now = time.monotonic()
        locked = {customer for customer, lock in zip(missing, self._locks(missing), strict=True) if lock}
        self._begun |= locked
        due = [customer for customer in missing if customer not in locked and self._is_due(customer, now)]
        for customer in due[: max(0, self._room - self.waiting())]:
            first_time = customer not in self._sent_at
            self._sent_at[customer] = now
            for _ in range(2 if first_time and is_doubled(self._seed, str(customer)) else 1):
                self._broker.enqueue(self._message(customer))
        return len(missing)

    def _is_due(self, customer: int, now: float) -> bool:
        if customer not in self._sent_at:
            return True
        waited_s = now - self._sent_at[customer]
        return waited_s > (AGAIN_SECONDS if customer in self._begun else PATIENCE_LEASES * self._ttl_s)

    def waiting(self) -> int:
        """Return how many messages nobody has taken up."""
        return int(self._client.llen(f"dramatiq:{self._work.queue}"))

    def unfinished(self) -> int:
        """Return how many messages have not been acknowledged."""
        return int(self._client.hlen(f"dramatiq:{self._work.queue}.msgs"))

    def _locks(self, customers: Sequence[int]) -> list[int]:
        pipeline = self._client.pipeline(transaction=False)
        for customer in customers:
            pipeline.exists(self._work.lock_key.format(customer=customer, period=self._period))
        return list(pipeline.execute())

    def _message(self, customer: int) -> "dramatiq.Message[None]":
        return dramatiq.Message(
            queue_name=self._work.queue,
            actor_name=self._work.actor,
            args=(customer, self._period),
            kwargs={},
            options={},
        )
