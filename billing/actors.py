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
    if (lease := current_lease(slot.resource)) and _came_too_late(slot, using=lease.using):
        logger.info("%s is concluded; this message came too late.", slot)
        return
    try:
        outcome = invoice(customer_id, slot.period)
    except LeaseError:
        raise  # the message goes back to the queue: somebody else has the customer, or took over
    except Exception as error:
        logger.exception("Invoicing %s failed.", slot)
        outcome = _unforeseen(slot, error)
    if outcome.retry_in is not None:
        message = CurrentMessage.get_current_message()
        invoice_customer.send_with_options(
            args=(customer_id, period),
            delay=outcome.retry_in,
            run=message.options.get("run") if message else None,
        )


def _came_too_late(slot: Slot, *, using: str) -> bool:
    """Say whether a run concluded the slot without a live invoice: parked, skipped, or invoiced and void since.

    That stays so until another run or a person asks again; a message that comes twice does not ask.
    """
    return runs.is_concluded(slot, using=using) and slot.live_invoice(using=using) is None


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
