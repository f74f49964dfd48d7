"""A Dramatiq middleware that leaves no lease behind when a worker ends."""

from typing import Any

from dramatiq.middleware import Middleware


class LeasesGivenBack(Middleware):
    """Releases, as the last thing a worker process does, the leases of jobs that did not end in time.

    broker.add_middleware(LeasesGivenBack())

    Otherwise nobody could start these jobs until the leases expire. A job that still runs for the moment until the
    process is gone has no lease any more, so its fenced writes are refused.
    """

    def after_worker_shutdown(self, broker: Any, worker: Any) -> None:
        # django_dramatiq makes its middleware before there are models.
        from leases.keeper import keeper

        for lease in keeper.kept():
            lease.release()
