"""The tax rates the simulated service knows: the same question always has the same answer."""

from collections.abc import Mapping

NO_COUNTRY = ""
UNTAXED = {"zero": "0", "exempt": "0"}
RATES: Mapping[str, Mapping[str, str]] = {
    NO_COUNTRY: {"standard": "0.19", "reduced": "0.07", **UNTAXED},
    "CH": {"standard": "0.081", "reduced": "0.026", **UNTAXED},
    "DE": {"standard": "0.19", "reduced": "0.07", **UNTAXED},
    "FR": {"standard": "0.2", "reduced": "0.055", **UNTAXED},
    "GB": {"standard": "0.2", "reduced": "0.05", **UNTAXED},
    "JP": {"standard": "0.1", "reduced": "0.08", **UNTAXED},
    "KW": {"standard": "0", "reduced": "0", **UNTAXED},
    "US": {"standard": "0.0725", "reduced": "0.0725", **UNTAXED},
}


class Rejected(Exception):
    """The question cannot be answered however often it is asked; the message says what is wrong with it."""


def rate(country: str, category: str) -> str:
    """Return the rate as a decimal string (`"0.19"`); raise `Rejected` for a country or category that is not known."""
    try:
        categories = RATES[country]
    except KeyError:
        raise Rejected(f"unknown country {country!r}; known: {', '.join(filter(None, RATES))}") from None
    try:
        return categories[category]
    except KeyError:
        raise Rejected(f"unknown tax category {category!r}; known: {', '.join(categories)}") from None
