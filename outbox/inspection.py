"""How the outbox stands: figures for people, metrics and health checks."""

from dataclasses import asdict, dataclass
from typing import Any

from django.db import connections

from outbox.statements import statement


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """One channel's unfinished messages; ages in seconds, None where there is no such message.

    Of those that are due or later, `retrying` were tried before, and `last_error` is what one of them met of late.
    """

    channel: str
    due: int
    later: int
    claimed: int
    sending: int
    in_doubt: int
    dead: int
    oldest_due_seconds: float | None
    oldest_in_doubt_seconds: float | None
    retrying: int = 0
    last_error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The same, as JSON takes it."""
        return asdict(self)


def status(using: str) -> list[ChannelStatus]:
    """How each channel stands, from the small indexes only: as fast with millions of sent messages as with none."""
    with connections[using].cursor() as cursor:
        cursor.execute(statement("status"))
        return [ChannelStatus(*row) for row in cursor.fetchall()]
