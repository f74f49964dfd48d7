"""Taking away what other drainers held too long."""

import logging
import random
import time
from collections import Counter
from datetime import timedelta

from outbox import channels, metrics, signals
from outbox.claims import Statements, Swept
from outbox.models import Message

logger = logging.getLogger("outbox.drain")

MOST_SECONDS_BETWEEN = 5.0


class Sweeper:
    """Sweeps every few seconds, each drainer at moments of its own."""

    def __init__(self, statements: Statements, claim_ttl: timedelta) -> None:
        self._statements = statements
        self._every = min(MOST_SECONDS_BETWEEN, claim_ttl.total_seconds() / 4)
        # What another drainer held may be of a channel that this one does not drain.
        self._channels = [channels.channel(name) for name in channels.names()]
        self._next = 0.0

    def wait(self) -> float:
        """Seconds until the next sweep is due."""
        return max(0.0, self._next - time.monotonic())

    def sweep(self) -> tuple[Counter[str], Counter[str]]:
        """Sweep, if it is time; how many messages of each channel are due again, and how many are parked in each state.

        Those that are parked are told of.
        """
        again, parked = Counter[str](), Counter[str]()
        if self.wait() > 0:
            return again, parked
        for swept in self._statements.sweep(self._channels):
            metrics.swept(swept.channel)
            if swept.state == "pending":
                again[swept.channel] += 1
            else:
                parked[swept.state] += 1
                self._tell(swept)
        for name, count in again.items():
            logger.warning(
                "%d messages of %s were held too long, and are due again",
                count,
                name,
                extra={"event": "outbox.swept", "channel": name, "count": count},
            )
        self._next = time.monotonic() + self._every * random.uniform(0.5, 1.0)  # noqa: S311
        return again, parked

    def _tell(self, swept: Swept) -> None:
        reason = "it was held too long, or may not be sent any more"
        logger.error(
            "%s: %s; now %s",
            swept.dedupe_key,
            reason,
            swept.state,
            extra={
                "event": f"outbox.{swept.state}",
                "outbox_id": swept.id,
                "channel": swept.channel,
                "claim": swept.claim,
            },
        )
        metrics.parked(swept.channel, swept.state)
        signals.parked.send_robust(
            sender=Message,
            message_id=swept.id,
            channel=swept.channel,
            dedupe_key=swept.dedupe_key,
            state=swept.state,
            reason=reason,
            using=self._statements.using,
        )
