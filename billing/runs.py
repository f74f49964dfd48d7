"""Runs and items: who is to be invoiced for a period, and what became of each."""

import logging
from collections.abc import Collection
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from django.db import connections, router, transaction
from django.db.models import Max, QuerySet
from django.db.models.functions import Now

from billing.conf import conf
from billing.models import Customer, Invoice, Item, Run
from billing.outcomes import Outcome
from billing.periods import Period
from billing.slots import Slot, as_dates
from billing.transactions import under
from leases import Lease

logger = logging.getLogger("billing.runs")

#: Everybody active, and whoever is closed but has usage left. The widest zones are 14 and 12 hours from UTC, so a day
#: on both sides is more than enough; the customer's own zone decides when it is rated.
WHO = """
SELECT c.id FROM billing_customer c
 WHERE (%(everybody)s AND (c.status = 'active' OR EXISTS (
          SELECT FROM billing_usageevent u
           WHERE u.customer_id = c.id AND u.invoice_id IS NULL
             AND u.occurred_at >= %(first)s::date - 1 AND u.occurred_at < %(end)s::date + 1)))
    OR c.code = ANY(%(codes)s)
 ORDER BY c.id
"""

_PLAN = f"""
INSERT INTO billing_item (run_id, customer_id, outcome, reason, attempts, rescues)
SELECT %(run)s, who.id, '', '', 0, 0 FROM ({WHO}) who
"""  # noqa: S608 - constants only

_BEGIN = """
WITH begun AS (
  UPDATE billing_item i
     SET started_at = clock_timestamp(), attempts = i.attempts + 1
    FROM billing_run r
   WHERE r.id = i.run_id AND i.customer_id = %(customer_id)s AND r.period = %(period)s AND i.outcome IN ('', 'failed')
  RETURNING r.cutoff_at, i.attempts)
SELECT coalesce(max(cutoff_at), clock_timestamp()), coalesce(max(attempts), 1) FROM begun
"""

_DUE = """
SELECT bool_or(i.outcome IN ('', 'failed')),
       bool_or(i.outcome = '' OR i.outcome = 'failed' AND (i.retry_at > clock_timestamp()) IS NOT TRUE),
       max(i.attempts) FILTER (WHERE i.outcome IN ('', 'failed'))
  FROM billing_item i JOIN billing_run r ON r.id = i.run_id
 WHERE i.customer_id = %(customer_id)s AND r.period = %(period)s
"""


class UnknownCustomers(Exception):
    """A run was asked for customers that do not exist; nothing was planned."""

    def __init__(self, codes: Collection[str]) -> None:
        self.codes = sorted(codes)
        super().__init__(f"no customer has the code {', '.join(map(repr, self.codes))}; nothing was planned")


def plan(period: Period, *, codes: Collection[str] = ()) -> Run:
    """Make a run over `period` with one open item per customer, all or those of `codes`.

    The cutoff is now, by the database's clock: usage received later is left for another invoice. Raises
    UnknownCustomers.
    """
    using = router.db_for_write(Run)
    _check_known(codes)
    with transaction.atomic(using), connections[using].cursor() as cursor:
        run = Run.objects.using(using).create(period=as_dates(period), cutoff_at=Now())
        cursor.execute(_PLAN, {"run": run.pk, **who(period, codes)})
        run.refresh_from_db()
    return run


def planned_customers(period: Period, *, codes: Collection[str] = ()) -> list[int]:
    """Return the ids of the customers that `plan()` would make items for; raises UnknownCustomers."""
    _check_known(codes)
    with connections[router.db_for_write(Run)].cursor() as cursor:
        cursor.execute(WHO, who(period, codes))
        return [pk for (pk,) in cursor.fetchall()]


def who(period: Period, codes: Collection[str]) -> dict[str, Any]:
    """Return the parameters of `WHO`."""
    return {"everybody": not codes, "codes": list(codes), "first": period.first, "end": period.end}


def _check_known(codes: Collection[str]) -> None:
    if missing := set(codes) - set(Customer.objects.filter(code__in=codes).values_list("code", flat=True)):
        raise UnknownCustomers(missing)


def begin(lease: Lease, slot: Slot) -> tuple[datetime, int]:
    """Note that an attempt began on the slot's open items; return the newest run's cutoff and the attempt's number.

    Without an open item (a single invoice, a repeated broker message) the cutoff is now.
    """

    def work() -> tuple[datetime, int]:
        with connections[lease.using].cursor() as cursor:
            cursor.execute(_BEGIN, {"customer_id": slot.customer_id, "period": slot.dates})
            cutoff_at, attempts = cursor.fetchone()
            return cutoff_at, attempts

    return under(lease, work)


def conclude(lease: Lease, slot: Slot, outcome: Outcome) -> Outcome:
    """Write the outcome to the slot's open items, in a transaction of its own under the lease; return it."""
    under(lease, lambda: record(slot, outcome, using=lease.using))
    log(slot, outcome)
    return outcome


def record(slot: Slot, outcome: Outcome, *, using: str) -> None:
    """Write the outcome to the slot's open items, in the caller's transaction, which has presented the lease."""
    _write(_open_items(slot, using), outcome)


def record_issued(slot: Slot, invoice: Invoice, *, using: str) -> None:
    """Write to the slot's open items that there is an invoice now, in the transaction that makes it.

    One run issued it, the one whose cutoff it was rated with (see `begin()`); for every other it is already invoiced,
    so that what all runs issued adds up to what there is.
    """
    items = _open_items(slot, using)
    issuer = items.filter(run__cutoff_at=invoice.cutoff_at).order_by("-run_id").values("pk")[:1]
    _write(items.filter(pk__in=issuer), Outcome.issued(invoice.pk))
    _write(items, Outcome.already_invoiced(invoice.pk))


def _open_items(slot: Slot, using: str) -> QuerySet[Item]:
    return Item.objects.using(using).filter(customer_id=slot.customer_id, run__period=slot.dates, outcome__in=Item.OPEN)


def _write(items: QuerySet[Item], outcome: Outcome) -> None:
    items.update(
        outcome=outcome.kind,
        reason=outcome.reason[:1000],
        invoice_id=outcome.invoice_id,
        concluded_at=Now(),
        retry_at=None if outcome.retry_in is None else Now() + outcome.retry_in,
    )


def log(slot: Slot, outcome: Outcome) -> None:
    """Say what became of the slot, once it is committed."""
    level = logging.WARNING if outcome.kind in (Item.Outcome.FAILED, Item.Outcome.PARKED) else logging.INFO
    logger.log(
        level,
        "%s %s: %s",
        slot,
        outcome.kind,
        outcome.reason or f"invoice {outcome.invoice_id}",
        extra={"event": "item.outcome", "slot": str(slot), "outcome": outcome.kind.value, "reason": outcome.reason},
    )


def attempts(slot: Slot, *, using: str) -> int:
    """Return how often the slot's open items were attempted; 0 if it has none."""
    return int(_open_items(slot, using).aggregate(most=Max("attempts"))["most"] or 0)


class Due(Enum):
    """What a broker message about a slot finds."""

    NOW = "now"  # an open item, or no item at all: a single invoice
    LATER = "later"  # open items, all of which failed and are tried again later
    NEVER = "never"  # items, and none is open: runs asked for the slot, and nothing is left to do


def due(slot: Slot, *, attempt: int | None = None, using: str) -> Due:
    """Say when the slot is to be worked on, by the database's clock.

    `attempt` is the number of the attempt that a message was sent for, if it was sent for one: the next attempt is due
    when its own message comes, whatever the clocks of the broker and the workers.
    """
    with connections[using].cursor() as cursor:
        cursor.execute(_DUE, {"customer_id": slot.customer_id, "period": slot.dates})
        any_open, due_now, attempts = cursor.fetchone()
    if any_open is False:
        return Due.NEVER
    return Due.NOW if due_now is not False or attempt == attempts + 1 else Due.LATER


def retry_delay(attempt: int) -> timedelta:
    """Return how long a failed item waits before its next attempt: doubled each time, up to the maximum."""
    delay: timedelta = min(conf.RETRY_DELAY * 2 ** min(attempt - 1, 20), conf.MAX_RETRY_DELAY)
    return delay
