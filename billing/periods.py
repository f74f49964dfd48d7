"""Billing periods: whole local days of a customer's zone, as half-open ranges of instants. Pure."""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

_MONTH = re.compile(r"(\d{4})-(\d\d)", re.ASCII)
_RANGE = re.compile(r"(\d{4}-\d\d-\d\d)/(\d{4}-\d\d-\d\d)", re.ASCII)

#: What lies beyond is a typing error, and some of it no zone could convert.
FIRST_YEAR, LAST_YEAR = 1900, 2199
#: Books are kept for ten years or less, and nobody bills two years ahead: what lies beyond is rarely meant.
YEARS_BACK, YEARS_AHEAD = 10, 2


class InvalidPeriod(ValueError):
    """The text names no period; write a month (`2026-05`) or two dates (`2026-05-01/2026-05-16`, end excluded)."""

    def __init__(self, text: str, why: str = "") -> None:
        self.text = text
        self.why = why
        super().__init__(
            f"{text!r} is not a period{why and ': '}{why}; write a month such as 2026-05, or first day and day after "
            "the last such as 2026-05-01/2026-05-16"
        )


@dataclass(frozen=True, order=True, slots=True)
class Period:
    """The local days from `first` up to, not including, `end`."""

    first: date
    end: date

    def __post_init__(self) -> None:
        text = f"{self.first}/{self.end}"
        if self.first == self.end:
            raise InvalidPeriod(text, "it ends on the day it begins, which is excluded")
        if self.first > self.end:
            raise InvalidPeriod(text, "it ends before it begins")
        if self.first.year < FIRST_YEAR or self._last.year > LAST_YEAR:
            raise InvalidPeriod(text, f"its years are not all from {FIRST_YEAR} to {LAST_YEAR}")

    @classmethod
    def parse(cls, text: str) -> "Period":
        """Return the period that `str()` wrote, or that a person typed; raise `InvalidPeriod`."""
        try:
            if match := _MONTH.fullmatch(text):
                return cls.month(int(match[1]), int(match[2]))
            if match := _RANGE.fullmatch(text):
                return cls(date.fromisoformat(match[1]), date.fromisoformat(match[2]))
        except InvalidPeriod as error:
            raise InvalidPeriod(text, error.why) from None
        except (ValueError, OverflowError) as error:
            raise InvalidPeriod(text, str(error)) from None
        raise InvalidPeriod(text)

    @classmethod
    def month(cls, year: int, month: int) -> "Period":
        """Return one calendar month."""
        first = date(year, month, 1)
        return cls(first, (first + timedelta(days=31)).replace(day=1))

    def __str__(self) -> str:
        if self.first.day == 1 and self == Period.month(self.first.year, self.first.month):
            return f"{self.first:%Y-%m}"
        return f"{self.first}/{self.end}"

    def is_far_from(self, today: date) -> bool:
        """Say whether the period lies more than `YEARS_BACK` before or `YEARS_AHEAD` after `today`'s year."""
        return self.first.year < today.year - YEARS_BACK or self._last.year > today.year + YEARS_AHEAD

    @property
    def _last(self) -> date:
        return self.end - timedelta(days=1)

    def bounds(self, timezone: str) -> tuple[datetime, datetime]:
        """Return the instants (UTC) at which the period starts and ends in `timezone`; the end is excluded.

        Depends on nothing but the dates and the zone, so neighbouring periods meet without gap or overlap in every
        zone, also where midnight is skipped or happens twice, or where a whole day was left out.
        """
        zone = ZoneInfo(timezone)
        return _midnight(self.first, zone), _midnight(self.end, zone)


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    # A skipped midnight read with the offset before the gap is the instant of the change itself, which is when the
    # day begins; of a repeated midnight `fold=0` is the first.
    return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)
