"""The actor: `(customer_id, period)` in, the database decides what there is to do."""

import logging

import dramatiq
from django.db import InterfaceError, OperationalError
from dramatiq.middleware import CurrentMessage

from billing import runs
from billing.conf import conf
from billing.invoicing import invoice
from billing.outcomes import Outcome
from billing.periods import Period
from billing.slots import Slot
from leases import current_lease, leased
from leases.errors import LeaseError

logger = logging.getLogger("billing.actors")


@dramatiq.actor(queue_name="billing", max_retries=3, min_backoff=1_000, max_backoff=60_000)
@leased("customer:{customer_id}", ttl=conf.LEASE_TTL)
def invoice_customer(customer_id: int, period: str) -> None:
    """Invoice one customer; a failed attempt is enqueued again with its delay, whatever the reason.

    The broker's own retries are only for when not even the failure could be written down.
    """
    slot = Slot(customer_id, Period.parse(period))
    lease, message = current_lease(slot.resource), CurrentMessage.get_current_message()
    if lease and not _is_due(slot, message.options.get("attempt") if message else None, using=lease.using):
        return
    try:
        outcome = invoice(customer_id, slot.period)
    except LeaseError:
        raise  # the message goes back to the queue: somebody else has the customer, or took over
    except Exception as error:
        logger.exception("Invoicing %s failed.", slot)
        outcome = _unforeseen(slot, error)
    if outcome.retry_in is not None:
        invoice_customer.send_with_options(
            args=(customer_id, period),
            delay=outcome.retry_in,
            run=message.options.get("run") if message else None,
            attempt=runs.attempts(slot, using=lease.using) + 1 if lease else None,
        )


def _is_due(slot: Slot, attempt: int | None, *, using: str) -> bool:
    """Say whether there is something to do for a message; the broker delivers twice, and the rescuer sends too many.

    Not where a run concluded the slot without a live invoice: parked, skipped, or invoiced and void since. That stays
    so until another run or a person asks again. Nor where the slot failed and its next attempt has a message of its
    own on the way: one more would be the first of a second chain of retries.
    """
    match runs.due(slot, attempt=attempt, using=using):
        case runs.Due.NEVER if slot.live_invoice(using=using) is None:
            logger.info("%s is concluded; this message came too late.", slot)
            return False
        case runs.Due.LATER:
            logger.info("%s is tried again later; this message came too early.", slot)
            return False
    return True


def _unforeseen(slot: Slot, error: Exception) -> Outcome:
    lease = current_lease(slot.resource)
    attempts = runs.attempts(slot, using=lease.using) if lease else 0
    if lease is None or not attempts:
        raise error
    reason = f"{type(error).__name__}: {error}"
    # A database that is away or in the way is nobody's mistake, however long it lasts.
    if attempts >= conf.MAX_UNEXPECTED_FAILURES and not isinstance(error, OperationalError | InterfaceError):
        return runs.conclude(lease, slot, Outcome.parked(reason))
    return runs.conclude(lease, slot, Outcome.failed(reason, runs.retry_delay(attempts)))
