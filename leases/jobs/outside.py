"""Jobs that run once although their effect is outside the database.

Between the effect and its receipt the process can die, and nobody can know afterwards whether it took effect. So a run
is declared first, under a lease, and what a declared run without an end means is the actor's choice:

* "retry": it is run again. The effect happens at least once.
* "park": it is set aside for a person. The effect happens at most once until the person opens the key again.
"""

import json
import logging
import random
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Literal

from django.db import DatabaseError

from leases import fence
from leases.holding import current_lease, hold
from leases.jobs import receipt_sql
from leases.jobs.errors import OutcomeNotJson, ReceiptBusy
from leases.jobs.messages import current_id
from leases.jobs.models import Receipt
from leases.jobs.repeats import Once, as_json, find_earlier, log, refuse_foreign
from leases.lease import Lease

logger = logging.getLogger("leases")


class NothingDone(Exception):
    """Raised by a job whose effect is outside the database: it did not take effect and may be tried again."""


def resource_of(key: str) -> str:
    """Return the name of the lease that a run outside the database holds."""
    return f"once:{key}"


def run_outside(spec: Once, key: str, work: Callable[[], Any], *, on_crash: Literal["retry", "park"]) -> Any:
    """Run `work` under the key's lease, declared before and receipted after, or return what an earlier run left.

    With on_crash="park" an exception parks the key too, unless it is NothingDone: a request that timed out may have
    arrived.
    """
    earlier = find_earlier(spec, key)
    if earlier is not None:
        return earlier.outcome
    if current_lease(resource_of(key), using=spec.using) is not None:
        # The body asks for the key of its own run, which is under way: as inside the database, nothing more runs.
        refuse_foreign(spec, key)
        return None
    with hold(resource_of(key), using=spec.using) as lease:
        return _run(spec, key, work, lease, on_crash=on_crash)


def _run(spec: Once, key: str, work: Callable[[], Any], lease: Lease, *, on_crash: str) -> Any:
    started = receipt_sql.start(
        key,
        spec.name,
        token=lease.token,
        message_id=current_id(),
        retention=spec.retention,
        may_repeat=on_crash == "retry",
        using=spec.using,
    )
    if started is None or started[0] == Receipt.State.PARKED:
        earlier = find_earlier(spec, key)
        if earlier is None:
            refuse_foreign(spec, key)
            raise ReceiptBusy(key, waited=timedelta(0))
        return earlier.outcome
    log("receipt.started", "Running %s.", spec, key, token=lease.token, attempt=started[1])
    try:
        outcome = work()
    except NothingDone:
        with lease.job.shielded():
            receipt_sql.forget(key, token=lease.token, using=spec.using)
        raise
    except BaseException as error:
        if on_crash == "retry":
            raise
        _finish(spec, key, lease, state=Receipt.State.PARKED, reason=f"the run failed: {error!r:.1000}")
        log("receipt.parked", "%s is parked: its run failed in between.", spec, key, level=logging.ERROR, error=error)
        if not isinstance(error, Exception):
            raise
        return None
    try:
        text = as_json(key, outcome)
    except OutcomeNotJson as error:
        # The effect is out there: running it again for the sake of its outcome would be the worse mistake.
        logger.error("%s", error)
        text = None
    if _finish(spec, key, lease, state=Receipt.State.DONE, outcome=text):
        log("receipt.done", "Ran %s.", spec, key, token=lease.token)
    else:
        log(
            "receipt.overlapped",
            "%s ran twice: another run began while this one had lost its lease.",
            spec,
            key,
            level=logging.ERROR,
            token=lease.token,
        )
    return None if text is None else json.loads(text)


def _finish(
    spec: Once, key: str, lease: Lease, *, state: Receipt.State, outcome: str | None = None, reason: str = ""
) -> bool:
    """Write the end of a run, again and again while the lease lasts: without it nobody knows that it took effect."""
    write = partial(
        receipt_sql.finish,
        key,
        token=lease.token,
        state=state.value,
        outcome=outcome,
        reason=reason,
        using=spec.using,
    )
    while True:
        try:
            fence.reopen_if_closed(spec.using)
            with lease.job.shielded():  # a lost lease, too, has an end to be known
                return write()
        except DatabaseError as error:
            left_s = lease.remaining().total_seconds()
            if left_s <= 0:
                raise
            logger.warning("The end of %s could not be recorded: %s. It is tried again.", key, error)
            time.sleep(min(left_s, random.uniform(0.1, 0.5)))  # noqa: S311 - jitter
