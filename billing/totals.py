"""The totals of a document from its rounded lines. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from billing import money


@dataclass(frozen=True, slots=True)
class TaxSubtotal:
    """The tax of one category and rate, computed on the summed base and rounded once."""

    category: str
    rate: Decimal
    base_minor: int
    tax_minor: int


@dataclass(frozen=True, slots=True)
class Totals:
    """What a document adds up to; `gross_minor` is always `net_minor + tax_minor`."""

    net_minor: int
    tax_minor: int
    subtotals: tuple[TaxSubtotal, ...]

    @property
    def gross_minor(self) -> int:
        return self.net_minor + self.tax_minor


def totals(lines: Iterable[tuple[str, Decimal, int]]) -> Totals:
    """Add up lines of (tax category, rate as a fraction, net in minor units).

    Tax is computed per category and rate on the summed base, never per line, so the order of the lines and their
    splitting cannot move a cent. Source: EN 16931, BR-CO-10 to BR-CO-17; Japan's rule of rounding once per rate.
    """
    bases: dict[tuple[str, Decimal], int] = {}
    for category, rate, net_minor in lines:
        bases[category, rate] = bases.get((category, rate), 0) + net_minor
    subtotals = tuple(
        TaxSubtotal(category, rate, base, money.tax_minor(base, rate))
        for (category, rate), base in sorted(bases.items())
    )
    return Totals(
        net_minor=sum(subtotal.base_minor for subtotal in subtotals),
        tax_minor=sum(subtotal.tax_minor for subtotal in subtotals),
        subtotals=subtotals,
    )
