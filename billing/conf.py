"""The app's settings: read when used, so that `override_settings` works and importing never needs them."""

from datetime import timedelta
from typing import Any

from django.conf import settings


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

    def __getattribute__(self, name: str) -> Any:
        return getattr(settings, f"BILLING_{name}", object.__getattribute__(self, name))


conf = Settings()
