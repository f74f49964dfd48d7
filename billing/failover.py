"""After a database that forgot: nothing is billed or mailed again that may have been, until a person has looked."""

import logging

from django.db import connections, transaction

from billing.wording import counted
from leases import forgetting as fences
from outbox import forgetting as messages

logger = logging.getLogger("billing.failover")

REASON = (
    "the database was restored or failed over and may have lost an invoice; look at the mail server and the tax service"
)

# The one change of outcomes that presents no lease: at this moment none is granted.
_PARK = """
UPDATE billing_item SET outcome = 'parked', reason = %(reason)s, concluded_at = clock_timestamp(), retry_at = NULL
 WHERE outcome IN ('', 'failed')
"""


def put_right(using: str, *, nothing_lost: bool = False, dry_run: bool = False) -> dict[str, int]:
    """Park every open item, put every unsent message in doubt, raise every fence; return how many of each.

    In this order, so that workers start again only when all the rest is done; a second call finishes what an
    interrupted one began. With `nothing_lost`, after a failover to a synchronous standby, the database is accepted as
    it is and nothing else is changed. With `dry_run` nothing is changed at all.
    """
    parked = 0
    if not nothing_lost:
        with transaction.atomic(using=using), connections[using].cursor() as cursor:
            cursor.execute(_PARK, {"reason": REASON})
            parked = cursor.rowcount
            transaction.set_rollback(dry_run, using=using)
        if not dry_run:
            logger.warning("Parked %s.", counted(parked, "open item"), extra={"event": "items.parked", "items": parked})
    return {
        "items_parked": parked,
        "messages_in_doubt": messages.put_right(using, nothing_lost=nothing_lost, dry_run=dry_run),
        "fences_raised": fences.put_right(using, nothing_lost=nothing_lost, dry_run=dry_run),
    }
