"""What became of one customer's invoice, as data."""

from dataclasses import dataclass
from datetime import timedelta

from billing.models import Item


@dataclass(frozen=True, slots=True)
class Outcome:
    """One of the item's outcomes, with the live invoice where there is one, and when it is tried again where it is."""

    kind: Item.Outcome
    invoice_id: int | None = None
    reason: str = ""
    retry_in: timedelta | None = None

    @classmethod
    def issued(cls, invoice_id: int) -> "Outcome":
        return cls(Item.Outcome.ISSUED, invoice_id)

    @classmethod
    def already_invoiced(cls, invoice_id: int) -> "Outcome":
        return cls(Item.Outcome.ALREADY_INVOICED, invoice_id)

    @classmethod
    def skipped(cls, reason: str) -> "Outcome":
        return cls(Item.Outcome.SKIPPED, reason=reason)

    @classmethod
    def failed(cls, reason: str, retry_in: timedelta) -> "Outcome":
        return cls(Item.Outcome.FAILED, reason=reason, retry_in=retry_in)

    @classmethod
    def parked(cls, reason: str) -> "Outcome":
        return cls(Item.Outcome.PARKED, reason=reason)
