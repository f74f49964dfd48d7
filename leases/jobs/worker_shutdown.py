"""What a worker that ends leaves behind: no lease, and messages that it could not deal with for others."""

from typing import Any

from dramatiq.middleware import Middleware

#: Message option, never sent: a worker that is leaving could not deal with the message.
_LEFT = "leases_left"


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


def leave(message: Any) -> None:
    """Have a message neither acknowledged nor rejected by a worker that is leaving, but delivered again."""
    message.options[_LEFT] = True


def is_left(message: Any) -> bool:
    """Say whether `leave()` was told so."""
    return bool(message.options.get(_LEFT))
