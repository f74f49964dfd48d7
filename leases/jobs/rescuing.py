"""Finding work that the broker lost: each project names its own.

A broker is a hint. What a database says is to be done, and no message stands for any more, only that database's owner
can find. So a project names functions that do:

    LEASES_RESCUERS = ["shop.rescuing.unsent_orders"]

    def unsent_orders() -> int:
        '''Enqueue again every order that waits although no job is under way; return how many.'''
        late = Order.objects.filter(state="paid", updated_at__lt=Now() - timedelta(minutes=2))[:1000]
        live = leases.live(f"order:{order.pk}" for order in late)
        lost = [order for order in late if f"order:{order.pk}" not in live]
        for order in lost:
            ship.send(order.pk)
        return len(lost)

Three rules. Ask the row's state and the lease, never how long a job may take. Let a message too many be harmless: the
job is @once, or looks at the state itself. Enqueue with `send()`: `send_once()` would take the lost one for pending.
"""

import logging
import threading
from collections.abc import Callable

from django.db import close_old_connections
from django.utils.module_loading import import_string

from leases.conf import conf

logger = logging.getLogger("leases")

#: A rescuer that runs for longer than this is named.
_SLOW_S = 60.0
_SLOW = "The rescuer %s has run for %s s and has not ended; no other is called before it has."


def rescue() -> dict[str, int | None]:
    """Call every function in LEASES_RESCUERS; return how many messages each enqueued, None for one that failed.

    An error in one is logged and stops no other; it is called again in the next pass. What one left of its database
    connections is not the next one's. One that takes longer than a minute is named in the log, since all others wait.
    """
    rescued: dict[str, int | None] = {}
    for name in conf.RESCUERS:
        slow = threading.Timer(_SLOW_S, logger.warning, (_SLOW, name, _SLOW_S))
        slow.daemon = True
        slow.start()
        try:
            count = _call(name)
        except (Exception, SystemExit):
            logger.exception("The rescuer %s failed; it is called again in the next pass.", name)
            rescued[name] = None
            continue
        finally:
            slow.cancel()
            close_old_connections()
        rescued[name] = count
        if count:
            logger.warning(
                "%s enqueued %d jobs again.",
                name,
                count,
                extra={"event": "jobs.rescued", "rescuer": name, "count": count},
            )
    return rescued


def _call(name: str) -> int:
    function: Callable[[], int | None] = import_string(name)
    count = function()
    if count is None:
        return 0
    if not isinstance(count, int) or count < 0:
        raise TypeError(f"{name} returned {count!r:.100}, not how many jobs it enqueued")
    return count
