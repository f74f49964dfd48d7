"""What a person decides about an item: to set it aside, or to have it tried again.

Both change an outcome, so both take the customer's lease like everyone else, and neither interrupts a job.
"""

import logging
from collections.abc import Callable
from datetime import timedelta

from django.db.models import DateTimeField, Exists, OuterRef, QuerySet
from django.db.models.functions import Cast

from billing import queueing, runs
from billing.conf import conf
from billing.errors import ItemConcluded
from billing.models import Invoice, Item, UsageEvent
from billing.outcomes import Outcome
from billing.slots import Slot, as_period
from billing.transactions import under
from leases import hold

logger = logging.getLogger("billing.parking")

WAIT = timedelta(seconds=2)
_DAY = timedelta(days=1)


def waiting_items() -> QuerySet[Item]:
    """Return the parked items that still need a person.

    Not those whose customer and period are invoiced since, in another run or by hand; nor those of a period that
    overlaps invoiced ones and has, within a day of either end, no usage left to invoice: the rest of it was billed.
    """
    live = Invoice.objects.filter(customer=OuterRef("customer")).exclude(status=Invoice.Status.VOID)
    begins, ends = (Cast(OuterRef(f"run__period__{end}"), DateTimeField()) for end in ("startswith", "endswith"))
    left = UsageEvent.objects.filter(
        customer=OuterRef("customer"), invoice=None, occurred_at__gte=begins - _DAY, occurred_at__lt=ends + _DAY
    )
    parked: QuerySet[Item] = Item.objects.filter(outcome=Item.Outcome.PARKED)
    return parked.exclude(Exists(live.filter(period=OuterRef("run__period")))).exclude(
        Exists(live.filter(period__overlap=OuterRef("run__period"))) & ~Exists(left)
    )


def park(item_id: int, reason: str, *, wait: timedelta = WAIT) -> None:
    """Set an open item aside: its customer is not invoiced for that period until somebody has it tried again.

    Holds for the slot, so also for open items that other runs have of it. A new run over the period is a decision to
    try again, too. Raises Item.DoesNotExist, ItemConcluded, and the errors of `leases.hold()`, such as LeaseBusy while
    a job works on the customer.
    """
    outcome = Outcome.parked(reason)
    slot = _change(item_id, wait, lambda item, slot, using: _park(item, slot, outcome, using))
    runs.log(slot, outcome)


def retry(item_id: int, *, wait: timedelta = WAIT) -> None:
    """Have an item tried again now: one that is parked, failed, open, or was invoiced by what is void since.

    Its attempts are counted anew. Raises Item.DoesNotExist, ItemConcluded, the errors of `leases.hold()`, and
    BrokerUnavailable, when the item is open again and the rescuer will enqueue it.
    """
    slot = _change(item_id, wait, _reopen)
    logger.info("%s is tried again.", slot, extra={"event": "item.reopened", "slot": str(slot), "item": item_id})
    queueing.enqueue([item_id])


def _change(item_id: int, wait: timedelta, change: Callable[[Item, Slot, str], None]) -> Slot:
    item = Item.objects.select_related("run").get(pk=item_id)
    slot = Slot(item.customer_id, as_period(item.run.period))
    with hold(slot.resource, ttl=conf.LEASE_TTL, wait=wait) as lease:

        def work() -> None:
            fresh = Item.objects.using(lease.using).select_related("invoice").get(pk=item_id)
            change(fresh, slot, lease.using)

        under(lease, work)
    return slot


def _park(item: Item, slot: Slot, outcome: Outcome, using: str) -> None:
    if item.outcome not in Item.OPEN:
        raise ItemConcluded(item.get_outcome_display(), "only what is still to be done can be parked")
    runs.record(slot, outcome, using=using)


def _reopen(item: Item, slot: Slot, using: str) -> None:
    if item.outcome == Item.Outcome.SKIPPED:
        raise ItemConcluded(item.get_outcome_display(), "bill the period again to include usage received since")
    if item.invoice is not None and item.invoice.status != Invoice.Status.VOID:
        raise ItemConcluded(item.get_outcome_display(), f"void {item.invoice} first")
    Item.objects.using(using).filter(pk=item.pk).update(
        outcome="", reason="", invoice=None, concluded_at=None, attempts=0, retry_at=None, enqueued_at=None, rescues=0
    )
