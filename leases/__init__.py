"""Leases with fencing: Redis proposes, PostgreSQL disposes.

A lease is one grant of one resource to one holder until a deadline. It saves wasted work: nobody starts what a live
holder is doing. It is not what keeps data correct, because a holder can be frozen, its clock or Redis can be wrong, and
then two holders work at the same time. What keeps data correct is the fence: every acquisition has a token that is
higher than all before it, PostgreSQL remembers the current one, and refuses every write under any other.

    acquire ──granted──▶ register ──accepted──▶ held ──▶ released
       │                    │                    │
       ▼ another holder     ▼ token not higher   ├─▶ lost: refused, deadline passed, held too long
     busy                 acquire again, above   └─▶ expired: its process crashed or froze

Trust window. A holder trusts its lease until `start of the last request that was granted + ttl - 5 %`, counted on a
clock that goes on during a suspend. It renews every third of the ttl, retries errors until that moment, and stops when
a renewal finds another holder. Local time is only ever a reason to stop, never to go on.

What makes the old holder harmless is registration: it happens before the new holder starts, waits for open
transactions of the old one, and after it every transaction that presents the old token fails.

When Redis forgets (FLUSHALL, eviction, failover to a replica that lags), tokens still go up: a token that is not above
the stored one is refused at registration, and asked for again above it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leases.bypassing import bypass as bypass
    from leases.fenced import FencedManager as FencedManager
    from leases.fenced import FencedModel as FencedModel
    from leases.fenced import FencedQuerySet as FencedQuerySet
    from leases.holding import current_lease as current_lease
    from leases.holding import hold as hold
    from leases.holding import lent as lent
    from leases.jobs.actors import leased as leased
    from leases.jobs.receipts import once as once
    from leases.jobs.reopening import reopen as reopen
    from leases.jobs.sending import send_once as send_once
    from leases.jobs.sending import send_once_with_options as send_once_with_options
    from leases.lease import Lease as Lease
    from leases.redis_store import live as live

# Models may be imported only once the apps are loading, so these names are looked up when first used.
_PUBLIC = {
    "FencedManager": "leases.fenced",
    "FencedModel": "leases.fenced",
    "FencedQuerySet": "leases.fenced",
    "Lease": "leases.lease",
    "bypass": "leases.bypassing",
    "current_lease": "leases.holding",
    "hold": "leases.holding",
    "lent": "leases.holding",
    "leased": "leases.jobs.actors",
    "live": "leases.redis_store",
    "once": "leases.jobs.receipts",
    "reopen": "leases.jobs.reopening",
    "send_once": "leases.jobs.sending",
    "send_once_with_options": "leases.jobs.sending",
}
__all__ = [
    "FencedManager",
    "FencedModel",
    "FencedQuerySet",
    "Lease",
    "bypass",
    "current_lease",
    "hold",
    "leased",
    "lent",
    "live",
    "once",
    "reopen",
    "send_once",
    "send_once_with_options",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'leases' has no attribute {name!r}")
