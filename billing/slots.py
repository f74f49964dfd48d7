"""Slots: what at most one live invoice can fill."""

from dataclasses import dataclass

from django.db.backends.postgresql.psycopg_any import DateRange
from django.db.models import QuerySet

from billing.errors import PeriodOverlaps
from billing.models import Invoice
from billing.periods import Period


@dataclass(frozen=True, slots=True)
class Slot:
    """One customer, one kind of invoice, one period."""

    customer_id: int
    period: Period
    kind: Invoice.Kind = Invoice.Kind.USAGE

    def __str__(self) -> str:
        return f"{self.customer_id}:{self.kind}:{self.period}"

    @property
    def resource(self) -> str:
        """What has to be leased to fill the slot."""
        return f"customer:{self.customer_id}"

    @property
    def dates(self) -> DateRange:
        return as_dates(self.period)

    def live_invoice(self, *, using: str = "default") -> Invoice | None:
        """Return the invoice that fills the slot, from the primary database."""
        return self._invoices(using).exclude(status=Invoice.Status.VOID).first()

    def check_overlap(self, *, using: str = "default") -> None:
        """Raise PeriodOverlaps if a live invoice of another period covers a part of this one."""
        live = Invoice.objects.using(using).exclude(status=Invoice.Status.VOID).exclude(period=self.dates)
        other = live.filter(customer_id=self.customer_id, kind=self.kind, period__overlap=self.dates).first()
        if other:
            raise PeriodOverlaps(str(self.period), other.reference, str(as_period(other.period)))

    def next_version(self, *, using: str = "default") -> int:
        """Return the version the next invoice of the slot has: one more than all before it, void ones included."""
        latest = self._invoices(using).order_by("-version").values_list("version", flat=True).first()
        return (latest or 0) + 1

    def document(self, version: int) -> str:
        """Name one version of the slot's invoice, the same at every attempt: for the tax service and the outbox."""
        return f"invoice:{self}:v{version}"

    def _invoices(self, using: str) -> QuerySet[Invoice]:
        invoices: QuerySet[Invoice] = Invoice.objects.using(using)
        return invoices.filter(customer_id=self.customer_id, kind=self.kind, period=self.dates)


def as_dates(period: Period) -> DateRange:
    """Return the period as PostgreSQL stores it."""
    return DateRange(period.first, period.end)


def as_period(dates: DateRange) -> Period:
    """Return the period that PostgreSQL stored."""
    return Period(dates.lower, dates.upper)


def slot_of(invoice: Invoice) -> Slot:
    """Return the slot that an invoice fills, or filled until it became void."""
    return Slot(invoice.customer_id, as_period(invoice.period), Invoice.Kind(invoice.kind))
