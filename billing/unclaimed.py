"""Usage that is on no invoice although its time is over: nothing is lost silently."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfoNotFoundError

from django.db import connections, router

from billing import runs
from billing.models import Customer, Run, UsageEvent
from billing.periods import Period
from billing.slots import as_period

# A run takes what its period holds, and what lies between it and the invoice of the period before (see billing.rating).
_BEFORE = """
SELECT c.code, count(*), min(u.occurred_at), max(u.occurred_at)
  FROM billing_customer c
  JOIN unnest(%(zones)s::text[], %(starts)s::timestamptz[]) AS z(zone, starts_at) ON z.zone = c.timezone
  LEFT JOIN billing_invoice b ON b.customer_id = c.id AND b.status <> 'void' AND upper(b.period) = %(first)s
  JOIN billing_usageevent u ON u.customer_id = c.id AND u.invoice_id IS NULL
                           AND u.occurred_at < least(z.starts_at, b.ends_at)
 WHERE %(everybody)s OR c.code = ANY(%(codes)s)
 GROUP BY c.code ORDER BY count(*) DESC, c.code
"""

_LEFT_BY = """
SELECT c.code, count(*), min(u.occurred_at), max(u.occurred_at)
  FROM billing_item i
  JOIN billing_customer c ON c.id = i.customer_id
  JOIN unnest(%(zones)s::text[], %(ends)s::timestamptz[]) AS z(zone, ends_at) ON z.zone = c.timezone
  JOIN billing_usageevent u ON u.customer_id = c.id AND u.invoice_id IS NULL AND u.occurred_at < z.ends_at
 WHERE i.run_id = %(run)s AND i.outcome IN ('issued', 'already_invoiced', 'skipped')
 GROUP BY c.code ORDER BY count(*) DESC, c.code
"""


_TO_COME = f"""
SELECT count(*), max(z.ends_at)
  FROM ({runs.WHO}) who
  JOIN billing_customer c ON c.id = who.id
  JOIN unnest(%(zones)s::text[], %(ends)s::timestamptz[]) AS z(zone, ends_at) ON z.zone = c.timezone
 WHERE z.ends_at > clock_timestamp()
"""  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """How much usage of one customer is on no invoice, and from when to when it occurred."""

    customer: str
    usage: int
    first: datetime
    last: datetime


def before(period: Period, *, codes: Collection[str] = ()) -> list[Unclaimed]:
    """Return the unclaimed usage from before `period`, which a run over it does not take: most first."""
    starts = {zone: bounds[0] for zone, bounds in _bounds(period).items()}
    return _found(
        _BEFORE,
        zones=list(starts),
        starts=list(starts.values()),
        first=period.first,
        everybody=not codes,
        codes=list(codes),
    )


def left_by(run: Run) -> list[Unclaimed]:
    """Return the unclaimed usage up to the end of the run's period, of customers that the run is done with."""
    ends = {zone: bounds[1] for zone, bounds in _bounds(as_period(run.period)).items()}
    return _found(_LEFT_BY, zones=list(ends), ends=list(ends.values()), run=run.pk)


def to_come(period: Period, *, codes: Collection[str] = ()) -> tuple[int, datetime] | None:
    """Return for how many customers of a run over `period` it is not over yet, and when it is for the last of them.

    What they use until then comes after the run's cutoff. None where it is over for everybody.
    """
    ends = {zone: bounds[1] for zone, bounds in _bounds(period).items()}
    with connections[router.db_for_write(UsageEvent)].cursor() as cursor:
        parameters = {"zones": list(ends), "ends": list(ends.values()), **runs.who(period, codes)}
        cursor.execute(_TO_COME, parameters)
        count, until = cursor.fetchone()
    return (count, until) if count else None


def _bounds(period: Period) -> dict[str, tuple[datetime, datetime]]:
    """Return where the period starts and ends in each zone that a customer has; zones that do not exist are parked."""
    found = {}
    for zone in Customer.objects.using(router.db_for_write(Run)).values_list("timezone", flat=True).distinct():
        try:
            found[zone] = period.bounds(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            continue
    return found


def _found(statement: str, **parameters: Any) -> list[Unclaimed]:
    with connections[router.db_for_write(UsageEvent)].cursor() as cursor:
        cursor.execute(statement, parameters)
        return [Unclaimed(*row) for row in cursor.fetchall()]
