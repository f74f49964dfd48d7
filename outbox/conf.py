"""The app's settings: read when used, each with a safe default."""

from datetime import timedelta
from typing import Any, cast

from django.conf import settings as django_settings
from django.core.signals import setting_changed


class Settings:
    """`settings.NAME` is Django's `OUTBOX_NAME`, or the default that stands here."""

    CHANNELS: dict[str, dict[str, Any]] = {
        "email": {"BACKEND": "outbox.channels.email.EmailChannel"},
    }
    """Name → {"BACKEND": dotted path, "IN_DOUBT": "park" or "resend", "OPTIONS": what the channel's class takes}."""

    CLAIM_TTL: timedelta = timedelta(seconds=60)
    """How long a drainer may hold what it claimed; also how long the messages of a killed drainer wait."""

    MAX_CLAIM_TTL: timedelta = timedelta(hours=1)
    """No claim is longer; a claim that ends further ahead came from a clock that was wrong, and is swept."""

    BATCH_SIZE: int = 100
    """Messages per claim."""

    CONCURRENCY: int = 4
    """Messages one drainer hands over at the same time."""

    POLL_INTERVAL: timedelta = timedelta(seconds=1)
    """How long an idle drainer waits before it looks again."""

    NOTIFY: bool = True
    """Whether publish() wakes drainers at once. Costs one NOTIFY per process and tenth of a second."""

    MAX_ATTEMPTS: int = 50
    """A message that was refused so often is dead."""

    RETRY_FOR: timedelta = timedelta(days=3)
    """A message that is still refused so long after its first attempt is dead."""

    RETRY_BASE: timedelta = timedelta(seconds=10)
    """The first retry comes after up to this long, each further one after up to twice as long."""

    RETRY_CAP: timedelta = timedelta(hours=1)
    """No retry waits longer, unless the receiver asks for it."""

    MAX_CONTENT_BYTES: int = 20 * 1024 * 1024
    """Larger content is refused by publish()."""


class _AsRead:
    """Keeps each setting once it was read: to look for one that is not set costs Django an exception each time."""

    def __getattr__(self, name: str) -> Any:
        kept = self.__dict__  # before it is read: what changes meanwhile is not kept as it was
        kept[name] = getattr(django_settings, f"OUTBOX_{name}", getattr(Settings, name))
        return kept[name]


def _read_again(*, setting: str, **kwargs: Any) -> None:
    if setting.startswith("OUTBOX_"):
        settings.__dict__ = {}  # another one: a thread may be about to keep what it read before


settings = cast(Settings, _AsRead())
setting_changed.connect(_read_again)
