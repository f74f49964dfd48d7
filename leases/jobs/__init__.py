"""Jobs: Dramatiq actors under a lease, jobs that run once, schedules, and what the broker loses.

Decorators and functions for a project's own code are `leases`' public names: `leased`, `once`, `send_once`, `reopen`.
Public here is what a broker is set up with (`DeadLetters`, `LeasesGivenBack`, `LeaseWatcher`, `Measurements`) and what
a job whose effect is outside the database may raise (`NothingDone`).

    actors          leased(): an actor that runs under a lease
    messages        the message in hand, and what becomes of it when its job cannot run now
    turns           its policy "serial": who is next
    receipts        once(): the effect and its receipt commit together; receipt_sql has the statements
    repeats         what an earlier run left under a key
    outside         once(on_crash=...): an effect that cannot share the receipt's transaction
    sending         not enqueueing what is done or pending
    reopening       having a job take effect once more, on the record
    schedules       what LEASES_SCHEDULE may say; scheduler fires it
    rescuing        finding work that the broker lost
    dead_letters    keeping what failed for good, and replaying it
    workload        how much waits, and how many workers it takes
    discovery       finding a project's actors
    brokers         Dramatiq's own, with what was seen to go wrong in them put right
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leases.jobs.outside import NothingDone as NothingDone
    from leases.jobs.worker_dead_letters import DeadLetters as DeadLetters
    from leases.jobs.worker_shutdown import LeasesGivenBack as LeasesGivenBack
    from leases.jobs.worker_watcher import LeaseWatcher as LeaseWatcher
    from leases.jobs.workload import Measurements as Measurements

# Some need models, which may be imported only once the apps are loading; so they are looked up when first used.
_PUBLIC = {
    "DeadLetters": "leases.jobs.worker_dead_letters",
    "LeaseWatcher": "leases.jobs.worker_watcher",
    "LeasesGivenBack": "leases.jobs.worker_shutdown",
    "Measurements": "leases.jobs.workload",
    "NothingDone": "leases.jobs.outside",
}
__all__ = ["DeadLetters", "LeaseWatcher", "LeasesGivenBack", "Measurements", "NothingDone"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'leases.jobs' has no attribute {name!r}")
