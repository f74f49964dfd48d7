"""One value of a row, read strictly: what would be stored as something else is refused, never bent."""

import re
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from zoneinfo import available_timezones

from django.core.exceptions import ValidationError
from django.core.validators import validate_email

from billing import money

_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)


class Refused(Exception):
    """A row is not taken; the message is the reason that the report shows."""


def is_text(value: str) -> bool:
    """Say whether it was UTF-8 throughout: other bytes were read as surrogates."""
    return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)


def text(name: str, value: str, max_length: int, *, blank: bool = False) -> str:
    value = value.strip()
    if not value and not blank:
        raise Refused(f"{name} is empty")
    if len(value) > max_length:
        raise Refused(f"{name} is longer than {max_length} characters")
    if not is_text(value):
        raise Refused(f"{name} contains bytes that are not UTF-8 text")
    if len(value.splitlines()) > 1:
        raise Refused(f"{name} contains a line break; is a quote before it not closed?")
    return value


def decimal(name: str, value: str, max_digits: int, places: int) -> Decimal:
    """Return the exact number; one with more decimals or digits than can be stored is refused, not rounded."""
    value = value.strip()
    if not _DECIMAL.fullmatch(value):
        raise Refused(f"{name} {value!r:.60} is not a number such as 1234.5")
    number = Decimal(value)
    if number == 0:
        return Decimal(0)
    digits = number.as_tuple().digits
    trailing_zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)  # noqa: S101 - the pattern admits neither NaN nor infinity
    if -(exponent + trailing_zeros) > places:
        raise Refused(f"{name} {value:.60} has more than {places} decimals")
    if number.adjusted() + 1 > max_digits - places:
        raise Refused(f"{name} {value:.60} has more than {max_digits - places} digits before the point")
    return number


def moment(name: str, value: str) -> datetime:
    """Return an instant in UTC; a text without an offset names none and is refused."""
    at = _parsed(name, value, "a time such as 2026-05-31T23:59:59Z")
    if at.tzinfo is None:
        raise Refused(f"{name} {value.strip():.60} has no offset from UTC; append Z or one such as +02:00")
    return _in_utc(name, at)


def utc_moment(name: str, value: str) -> datetime:
    """Return an instant in UTC, reading a text without offset as UTC and a date as its first moment there."""
    at = _parsed(name, value, "a date or time such as 2026-05-31 or 2026-05-31T23:59:59Z")
    return _in_utc(name, at) if at.tzinfo else at.replace(tzinfo=UTC)


def currency(name: str, value: str) -> str:
    value = value.strip()
    try:
        money.exponent(value)
    except money.UnknownCurrency as error:
        raise Refused(f"{name}: {error}") from None
    return value


def timezone(name: str, value: str) -> str:
    value = value.strip() or "UTC"
    if value not in _timezones():
        raise Refused(f"{name} {value!r:.60} is not an IANA time zone such as Europe/Berlin")
    return value


def email(name: str, value: str) -> str:
    value = text(name, value, 320)
    try:
        validate_email(value)
    except ValidationError:
        raise Refused(f"{name} {value!r:.100} is not an email address") from None
    return value


def country(name: str, value: str) -> str:
    value = value.strip()
    if value and not re.fullmatch(r"[A-Z]{2}", value):
        raise Refused(f"{name} {value!r:.60} is not a country code such as DE")
    return value


@cache
def _timezones() -> frozenset[str]:
    # Debian lists the machine's own zone and one for machines without: neither is the same everywhere.
    return frozenset(available_timezones() - {"localtime", "Factory"})


def _parsed(name: str, value: str, expected: str) -> datetime:
    try:
        return datetime.fromisoformat(value.strip())
    except ValueError:
        raise Refused(f"{name} {value.strip()!r:.60} is not {expected}") from None


def _in_utc(name: str, at: datetime) -> datetime:
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise Refused(f"{name} {at.isoformat()} is out of range") from None
