"""Opening a key again: the deliberate way to have a job take effect once more."""

import logging
from datetime import timedelta

from django.db import router, transaction
from django.db.models.functions import Now

from leases.holding import current_lease, hold
from leases.jobs.errors import ReceiptBusy, ReceiptMissing
from leases.jobs.keys import validated
from leases.jobs.models import MAX_NAME_LENGTH, Receipt, Reopening
from leases.jobs.outside import resource_of
from leases.jobs.sending import forget_pending

logger = logging.getLogger("leases")


def reopen(key: str, *, by: str, reason: str, using: str | None = None) -> Reopening:
    """Throw the receipt of `key` away, so that its next message runs, and keep a record of who did so and why.

    by: who decided, as people will look for it. reason: why it may take effect again; must say something. A message
    that is still queued is enough for it to run. Raises ReceiptMissing, InvalidKey, ValueError for a name or a reason
    that cannot be kept, and for a run outside the database that may still be under way LeaseBusy or ReceiptBusy.
    """
    if not by.strip() or not reason.strip():
        raise ValueError("opening a key again needs a name and a reason")
    if len(by) > MAX_NAME_LENGTH or "\x00" in by + reason:
        raise ValueError(
            f"a name has at most {MAX_NAME_LENGTH} characters, and neither it nor a reason a NUL character"
        )
    validated(key)
    alias = using or router.db_for_write(Receipt)
    state = Receipt.objects.using(alias).filter(key=key).values_list("state", flat=True).first()
    if state is None:
        raise ReceiptMissing(key)
    if state == Receipt.State.STARTED:
        with hold(resource_of(key), using=alias):
            reopening = _reopen(key, by=by, reason=reason, using=alias)
    else:
        reopening = _reopen(key, by=by, reason=reason, using=alias)
    forget_pending(key)
    return reopening


def _reopen(key: str, *, by: str, reason: str, using: str) -> Reopening:
    with transaction.atomic(using=using):
        receipt = Receipt.objects.using(using).select_for_update().filter(key=key).first()
        if receipt is None:
            raise ReceiptMissing(key)
        if receipt.state == Receipt.State.STARTED and current_lease(resource_of(key), using=using) is None:
            raise ReceiptBusy(key, waited=timedelta(0))  # somebody else has opened it since, and it runs
        reopening = Reopening.objects.using(using).create(
            key=key,
            actor=receipt.actor,
            by=by,
            reason=reason,
            state=receipt.state,
            outcome=receipt.outcome,
            ran_at=receipt.ran_at,
            asked_again=receipt.asked_again,
            reopened_at=Now(),
        )
        receipt.delete()
    logger.warning(
        "%s was opened again by %s: %s", key, by, reason, extra={"event": "receipt.reopened", "key": key, "by": by}
    )
    return reopening
