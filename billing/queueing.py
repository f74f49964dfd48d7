"""Giving items to the broker."""

from collections.abc import Sequence

from django.db import connections, router
from dramatiq.errors import BrokerError
from redis.exceptions import RedisError

from billing.actors import invoice_customer
from billing.errors import BrokerUnavailable
from billing.models import Item, Run
from billing.slots import as_period

BATCH_ITEMS = 1000

# Only items that are still open, and each for its run once at a time; the message says nothing that is not here.
_TAKE = """
UPDATE billing_item SET enqueued_at = clock_timestamp(), rescues = rescues + %(rescue)s
 WHERE id = ANY(%(ids)s) AND outcome IN ('', 'failed')
RETURNING customer_id, run_id
"""


def enqueue_run(run: Run) -> int:
    """Enqueue every open item of the run that the broker was not given yet; return how many."""
    count, last = 0, 0
    open_items = Item.objects.filter(run=run, outcome__in=Item.OPEN, enqueued_at=None).order_by("pk")
    while ids := list(open_items.filter(pk__gt=last).values_list("pk", flat=True)[:BATCH_ITEMS]):
        count += enqueue(ids)
        last = ids[-1]
    return count


def enqueue(item_ids: Sequence[int], *, rescue: bool = False) -> int:
    """Give the broker a message for each of the items that is open; return how many.

    First noted, then sent: if the process ends in between, the rescuer finds items that wait and sends them again.
    Raises BrokerUnavailable.
    """
    with connections[router.db_for_write(Item)].cursor() as cursor:
        cursor.execute(_TAKE, {"ids": list(item_ids), "rescue": int(rescue)})
        taken = cursor.fetchall()
    periods = {run.pk: str(as_period(run.period)) for run in Run.objects.filter(pk__in={run for _, run in taken})}
    try:
        for customer_id, run_id in taken:
            invoice_customer.send_with_options(args=(customer_id, periods[run_id]), run=run_id)
    except (RedisError, BrokerError) as error:
        raise BrokerUnavailable(str(error)) from error
    return len(taken)
