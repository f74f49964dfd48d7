"""What happens to both sides: which worker is frozen or killed when, and whose message comes twice. Pure, seeded."""

import random
from dataclasses import dataclass

DOUBLED_SHARE = 0.05
KILLED_SHARE = 0.3


@dataclass(frozen=True)
class Fault:
    """One fault: `at_s` seconds after the work began, worker `worker` is frozen for `frozen_s`, or killed if None."""

    at_s: float
    worker: int
    frozen_s: float | None


def faults(seed: int, *, workers: int, ttl_s: float, until_s: float) -> list[Fault]:
    """Return the faults of one replay, about one per half lease; a freeze outlasts the lease, up to twice over."""
    chosen = random.Random(f"{seed}:faults")  # noqa: S311 - a schedule, no secret
    planned: list[Fault] = []
    free_at = [0.0] * workers
    at = ttl_s / 2
    while at < until_s:
        standing = [worker for worker in range(workers) if free_at[worker] <= at]
        if standing:
            worker = chosen.choice(standing)
            frozen_s = None if chosen.random() < KILLED_SHARE else ttl_s * chosen.uniform(1.3, 2.0)
            free_at[worker] = at + (frozen_s or ttl_s)
            planned.append(Fault(round(at, 3), worker, frozen_s and round(frozen_s, 3)))
        at += chosen.expovariate(2 / ttl_s)
    return planned


def is_doubled(seed: int, customer: str) -> bool:
    """Return whether this customer's message is enqueued twice."""
    return random.Random(f"{seed}:doubled:{customer}").random() < DOUBLED_SHARE  # noqa: S311 - a schedule, no secret
