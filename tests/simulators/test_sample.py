import csv
import io
from collections import Counter
from datetime import UTC, date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from django.core.management import call_command

from billing.simulators.sample import Sample


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_equal_options_write_equal_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        words = ["--customers", "30", "--seed", "5", "--period", "2026-05", "--out", str(tmp_path / name)]
        call_command("sample_usage", *words, stdout=io.StringIO())
    for file in ("customers.csv", "prices.csv", "usage.csv"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    other = Sample(30, 6, date(2026, 5, 1))
    assert len(rows(tmp_path / "one" / "usage.csv")) != len(list(other.usage()))
    assert list(rows(tmp_path / "one" / "customers.csv")[0]) == [
        "code",
        "name",
        "email",
        "currency",
        "timezone",
        "country",
    ]
    assert list(rows(tmp_path / "one" / "prices.csv")[0]) == [
        "metric",
        "currency",
        "unit_price",
        "tax_category",
        "valid_from",
    ]
    assert list(rows(tmp_path / "one" / "usage.csv")[0]) == [
        "source",
        "key",
        "customer",
        "metric",
        "subject",
        "quantity",
        "occurred_at",
    ]


def test_most_customers_are_small_and_a_few_have_a_hundred_times_the_lines() -> None:
    sample = Sample(300, 1, date(2026, 5, 1))
    lines = Counter(customer for customer, _ in {(event.customer, event.subject) for event in sample.usage()})
    assert sum(count <= 6 for count in lines.values()) > 250
    assert sum(count >= 200 for count in lines.values()) == 3
    assert 0 < 300 - len(lines) < 20  # some used nothing


def test_usage_lies_in_the_month_as_the_customers_zone_has_it_and_has_a_price() -> None:
    sample = Sample(40, 2, date(2026, 2, 1))
    zones = {customer.code: ZoneInfo(customer.timezone) for customer in sample.customers()}
    currencies = {customer.code: customer.currency for customer in sample.customers()}
    priced = {(price.metric, price.currency) for price in sample.prices()}
    keys = set()
    for event in sample.usage():
        at = datetime.fromisoformat(event.occurred_at)
        assert at.astimezone(zones[event.customer]).strftime("%Y-%m") == "2026-02"
        assert (event.metric, currencies[event.customer]) in priced
        assert event.quantity > 0
        keys.add(event.key)
    assert len(keys) == len(list(sample.usage()))
    assert set(currencies.values()) == {"USD", "EUR", "GBP", "JPY", "KWD"}
    assert any(zone.utcoffset(datetime(2026, 2, 1, tzinfo=UTC)) for zone in zones.values())
