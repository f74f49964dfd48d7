import itertools
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest

from billing.periods import InvalidPeriod, Period


@pytest.mark.parametrize(
    ("text", "first", "end"),
    [
        ("2026-05", date(2026, 5, 1), date(2026, 6, 1)),
        ("2026-12", date(2026, 12, 1), date(2027, 1, 1)),
        ("2024-02", date(2024, 2, 1), date(2024, 3, 1)),
        ("2026-05-01/2026-05-16", date(2026, 5, 1), date(2026, 5, 16)),
    ],
)
def test_period_is_read_and_written_alike(text: str, first: date, end: date) -> None:
    period = Period.parse(text)
    assert period == Period(first, end)
    assert str(period) == text
    assert Period.parse(str(period)) == period


def test_whole_month_given_as_dates_is_that_month() -> None:
    assert str(Period.parse("2026-05-01/2026-06-01")) == "2026-05"


@pytest.mark.parametrize(
    "text",
    ["", "2026", "2026-13", "2026-00", "2026-5", "2026-05-01", "2026-05-16/2026-05-01", "2026-05-01/2026-05-01",
     "2026-02-30/2026-03-01", " 2026-05", "\u0662\u0660\u0662\u0666-05", "9999-12", "0000-01", "1026-05", "2200-01"],
)  # fmt: skip
def test_text_that_is_no_period_is_refused(text: str) -> None:
    with pytest.raises(InvalidPeriod) as raised:
        Period.parse(text)
    assert "write a month such as 2026-05" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2026-05-16/2026-05-01", "it ends before it begins"),
        ("2026-05-01/2026-05-01", "it ends on the day it begins, which is excluded"),
        ("2026-13", "month must be in 1..12"),
        ("1026-05", "its years are not all from 1900 to 2199"),
        ("2199-12-01/2200-01-02", "its years are not all from 1900 to 2199"),
        ("9998-05", "its years are not all from 1900 to 2199"),
    ],
)
def test_reason_why_a_period_is_refused_is_given(text: str, why: str) -> None:
    with pytest.raises(InvalidPeriod) as raised:
        Period.parse(text)
    assert str(raised.value).startswith(f"{text!r} is not a period: {why}")


@pytest.mark.parametrize(
    ("text", "far"),
    [("2016-01", False), ("2015-12-01/2016-02-01", True), ("2028-12", False), ("2029-01", True), ("2126-05", True)],
)
def test_period_of_another_decade_is_far(text: str, far: bool) -> None:
    assert Period.parse(text).is_far_from(date(2026, 7, 1)) is far


@pytest.mark.parametrize(
    ("period", "zone", "start", "end"),
    [
        ("2026-05", "UTC", "2026-05-01T00:00+00:00", "2026-06-01T00:00+00:00"),
        ("2026-05", "America/New_York", "2026-05-01T04:00+00:00", "2026-06-01T04:00+00:00"),
        ("2026-05", "Pacific/Kiritimati", "2026-04-30T10:00+00:00", "2026-05-31T10:00+00:00"),
        ("2026-03", "Europe/Berlin", "2026-02-28T23:00+00:00", "2026-03-31T22:00+00:00"),  # a day of 23 hours
        ("2026-10", "Europe/Berlin", "2026-09-30T22:00+00:00", "2026-10-31T23:00+00:00"),  # a day of 25 hours
        # 8 September 2019 began at 01:00 in Santiago; 3 November 2019 had its midnight twice in Havana.
        ("2019-09-08/2019-09-09", "America/Santiago", "2019-09-08T04:00+00:00", "2019-09-09T03:00+00:00"),
        ("2019-11-03/2019-11-04", "America/Havana", "2019-11-03T04:00+00:00", "2019-11-04T05:00+00:00"),
        # Samoa had no 30 December 2011.
        ("2011-12-29/2011-12-30", "Pacific/Apia", "2011-12-29T10:00+00:00", "2011-12-30T10:00+00:00"),
        ("2011-12-31/2012-01-01", "Pacific/Apia", "2011-12-30T10:00+00:00", "2011-12-31T10:00+00:00"),
    ],
)
def test_bounds_are_midnights_of_the_zone(period: str, zone: str, start: str, end: str) -> None:
    assert Period.parse(period).bounds(zone) == (datetime.fromisoformat(start), datetime.fromisoformat(end))


ZONES = sorted(zone for zone in available_timezones() if zone not in {"Factory", "localtime"})


@pytest.mark.parametrize("zone", ZONES)
def test_months_tile_without_gap_or_overlap(zone: str) -> None:
    # billing 84-88: over every zone, each month ends where the next begins, and both ends are that local date.
    months = [Period.month(year, month) for year in range(2000, 2041) for month in range(1, 13)]
    bounds = [month.bounds(zone) for month in months]
    for (start, end), (next_start, _) in itertools.pairwise(bounds):
        assert start < end == next_start
    local = ZoneInfo(zone)
    for month, (start, end) in zip(months, bounds, strict=True):
        assert start.astimezone(local).date() == month.first
        assert (end - timedelta(microseconds=1)).astimezone(local).date() < month.end
        assert start.tzinfo is UTC


def test_last_and_first_moment_land_in_different_periods() -> None:
    # billing 88
    zone = ZoneInfo("Asia/Tokyo")
    last, first = datetime(2026, 5, 31, 23, 59, 59, 999999, tzinfo=zone), datetime(2026, 6, 1, tzinfo=zone)
    may, june = Period.parse("2026-05").bounds("Asia/Tokyo"), Period.parse("2026-06").bounds("Asia/Tokyo")
    assert may[0] <= last < may[1] <= first < june[1]
    assert june[0] <= first
