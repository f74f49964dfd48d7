"""A sample as the CSV files that the import commands read."""

import csv
import os
from collections.abc import Iterable
from dataclasses import asdict, fields
from decimal import Decimal
from pathlib import Path

from billing.simulators.sample import Sample, SampleCustomer, SamplePrice, SampleUsage


def write_all(directory: Path, sample: Sample) -> dict[str, int]:
    """Write the sample's files into `directory`, which is made if it is missing; return how many rows each has."""
    directory.mkdir(parents=True, exist_ok=True)
    return {
        "customers": write(directory / "customers.csv", SampleCustomer, sample.customers()),
        "prices": write(directory / "prices.csv", SamplePrice, sample.prices()),
        "usage": write(directory / "usage.csv", SampleUsage, sample.usage()),
    }


def write(
    path: Path,
    kind: type[SampleCustomer | SamplePrice | SampleUsage],
    items: Iterable[SampleCustomer | SamplePrice | SampleUsage],
) -> int:
    """Write `items` to `path`, which appears only when it is complete; return how many rows."""
    partial = path.with_suffix(".partial")
    rows = 0
    with partial.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(kind)])
        writer.writeheader()
        for item in items:
            writer.writerow(as_row(item))
            rows += 1
    os.replace(partial, path)
    return rows


def as_row(item: SampleCustomer | SamplePrice | SampleUsage) -> dict[str, str]:
    """Return the item as a CSV row; numbers without exponents."""
    return {name: f"{value:f}" if isinstance(value, Decimal) else str(value) for name, value in asdict(item).items()}
