"""The rescuer: finds work that the broker lost, and enqueues it again.

Two kinds of open items need it:

* abandoned: a job began, wrote no outcome, and its customer has no live lease: its worker was killed. Enqueued at once.
* stalled: the broker was given a message, or is about to be, and no job began on it, while no job began on what was
  enqueued before it either: its message was lost, or the workers are gone. As long as jobs begin on what stood before
  it, an item simply waits for its turn, and a second message would only make the queue longer. Each time it happens
  the item waits twice as long, up to a maximum.

A message too many is harmless: the second finds the invoice that the first made.
"""

import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import connections, router
from redis.exceptions import RedisError

import leases
from billing import queueing
from billing.conf import conf
from billing.errors import BrokerUnavailable
from billing.models import Item
from billing.wording import counted

logger = logging.getLogger("billing.rescuer")

BATCH_ITEMS = 1000

_BEGAN = "started_at > coalesce(concluded_at, '-infinity') AND started_at >= coalesce(enqueued_at, '-infinity')"

_ABANDONED = f"""
SELECT id, customer_id FROM billing_item
 WHERE outcome IN ('', 'failed') AND {_BEGAN} AND started_at < clock_timestamp() - %(after)s AND id > %(last)s
 ORDER BY id LIMIT %(limit)s
"""  # noqa: S608 - constants only

# A retry comes when it is due, not in its turn, so only first attempts say how far the queue is.
_STALLED = f"""
WITH turn AS MATERIALIZED (
  SELECT coalesce(min(enqueued_at), 'infinity') AS at FROM billing_item
   WHERE started_at > clock_timestamp() - %(after)s AND attempts = 1)
SELECT i.id FROM billing_item i JOIN billing_run r ON r.id = i.run_id, turn
 WHERE i.outcome IN ('', 'failed') AND ({_BEGAN}) IS NOT TRUE AND i.id > %(last)s
   AND greatest(r.created_at, enqueued_at, retry_at)
       < least(turn.at, clock_timestamp() - least(%(after)s * 2 ^ least(rescues, 20), greatest(%(after)s, %(most)s)))
 ORDER BY i.id LIMIT %(limit)s
"""  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True)
class Rescued:
    """How many items a pass enqueued again."""

    abandoned: int
    stalled: int

    def __bool__(self) -> bool:
        return bool(self.abandoned or self.stalled)


def rescue() -> Rescued:
    """Enqueue again what is abandoned or stalled; return how many of each.

    Any number of rescuers may run. Raises BrokerUnavailable, also when Redis cannot say which leases are live; what
    was not enqueued then is found by the next pass.
    """
    rescued = Rescued(abandoned=_abandoned(), stalled=_stalled())
    if rescued:
        logger.warning(
            "Enqueued again %s and %s.",
            counted(rescued.abandoned, "abandoned item"),
            counted(rescued.stalled, "stalled item"),
            extra={"event": "items.rescued", "abandoned": rescued.abandoned, "stalled": rescued.stalled},
        )
    return rescued


def _abandoned() -> int:
    count, last = 0, 0
    while rows := _rows(_ABANDONED, conf.ABANDONED_AFTER, last):
        live = _live([customer_id for _, customer_id in rows])
        count += queueing.enqueue([pk for pk, customer_id in rows if customer_id not in live])
        last = rows[-1][0]
    return count


def _live(customer_ids: list[int]) -> set[int]:
    """Return which of the customers somebody holds the lease of."""
    try:
        live = leases.live([f"customer:{customer_id}" for customer_id in customer_ids])
    except RedisError as error:
        raise BrokerUnavailable(str(error)) from error
    return {customer_id for customer_id in customer_ids if f"customer:{customer_id}" in live}


def _stalled() -> int:
    count, last = 0, 0
    while rows := _rows(_STALLED, conf.STALLED_AFTER, last):
        count += queueing.enqueue([pk for (pk,) in rows], rescue=True)
        last = rows[-1][0]
    return count


def _rows(statement: str, after: timedelta, last: int) -> list[tuple[int, ...]]:
    parameters: dict[str, Any] = {
        "after": after,
        "most": conf.MAX_STALLED_AFTER,
        "last": last,
        "limit": BATCH_ITEMS,
    }
    with connections[router.db_for_write(Item)].cursor() as cursor:
        cursor.execute(statement, parameters)
        return list(cursor.fetchall())
