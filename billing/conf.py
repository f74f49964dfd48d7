"""The app's settings: read when used, so that `override_settings` works and importing never needs them."""

from datetime import timedelta
from typing import Any, cast

from django.conf import settings
from django.core.signals import setting_changed


class Settings:
    """Each attribute is the default of the Django setting `BILLING_<NAME>`."""

    #: Where the tax service answers: `POST {TAX_URL}/v1/taxes`.
    TAX_URL: str = "http://127.0.0.1:8899"
    #: Longest silence of the tax service; kept below a third of the lease.
    TAX_TIMEOUT: timedelta = timedelta(seconds=15)
    #: Lines asked for in one request: per-line latency times this must fit into TAX_TIMEOUT.
    TAX_LINES_PER_REQUEST: int = 100
    #: Of a customer's lease; None means the default of `leases`.
    LEASE_TTL: timedelta | None = None
    #: Names of the number series of invoices and of credit notes, printed before the number.
    SERIES: str = "INV"
    CREDIT_SERIES: str = "CN"
    #: Sender of invoices; empty means DEFAULT_FROM_EMAIL.
    EMAIL_FROM: str = ""
    #: First delay of a failed item, doubled by each attempt up to the maximum.
    RETRY_DELAY: timedelta = timedelta(seconds=5)
    MAX_RETRY_DELAY: timedelta = timedelta(minutes=10)
    #: After so many attempts that failed for a reason nobody foresaw, an item is parked.
    MAX_UNEXPECTED_FAILURES: int = 5
    #: An item whose job began, but which has neither outcome nor live lease, is enqueued again after this.
    ABANDONED_AFTER: timedelta = timedelta(seconds=3)
    #: An item that waits for so long, while nothing begins that was enqueued before it, is enqueued again; doubled by
    #: each time it happens, up to the maximum.
    STALLED_AFTER: timedelta = timedelta(seconds=30)
    MAX_STALLED_AFTER: timedelta = timedelta(minutes=15)
    #: How long `bill --wait` waits for a database that does not answer before it gives up watching.
    DATABASE_PATIENCE: timedelta = timedelta(minutes=2)


class _AsRead:
    """Keeps each setting once it was read: to look for one that is not set costs Django an exception each time."""

    def __getattr__(self, name: str) -> Any:
        kept = self.__dict__  # before it is read: what changes meanwhile is not kept as it was
        kept[name] = getattr(settings, f"BILLING_{name}", getattr(Settings, name))
        return kept[name]


def _read_again(*, setting: str, **kwargs: Any) -> None:
    if setting.startswith("BILLING_"):
        conf.__dict__ = {}  # another one: a thread may be about to keep what it read before


conf = cast(Settings, _AsRead())
setting_changed.connect(_read_again)
