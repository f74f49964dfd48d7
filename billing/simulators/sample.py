"""Sample customers, prices and usage: made up, seeded, and skewed as real usage is.

Of a hundred customers, about 90 have a handful of lines, 9 ten times as many and 1 a hundred times as many; one in
fifty used nothing. They sit in zones from UTC-11 to UTC+14, and some of their usage falls on the very first and last
moment of the period there.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

CURRENCIES = {  # units of one US dollar, only to have prices of the right size
    "USD": Decimal(1),
    "EUR": Decimal("0.92"),
    "GBP": Decimal("0.79"),
    "JPY": Decimal("151.3"),
    "KWD": Decimal("0.307"),
}
HOMES = (  # currency, time zone, country
    ("USD", "America/New_York", "US"),
    ("EUR", "Europe/Berlin", "DE"),
    ("USD", "America/Los_Angeles", "US"),
    ("EUR", "UTC", ""),
    ("GBP", "Europe/London", "GB"),
    ("JPY", "Asia/Tokyo", "JP"),
    ("EUR", "Europe/Paris", "FR"),
    ("KWD", "Asia/Kuwait", "KW"),
    ("USD", "Pacific/Pago_Pago", ""),
    ("GBP", "Asia/Kathmandu", ""),
    ("USD", "Pacific/Kiritimati", ""),
)
METRICS = {  # unit price in US dollars, tax category, largest quantity of one event
    "compute.hours": (Decimal("0.0425"), "standard", 24),
    "storage.gb_hours": (Decimal("0.000031"), "standard", 50_000),
    "egress.gb": (Decimal("0.0875"), "standard", 300),
    "requests.million": (Decimal("0.4"), "standard", 40),
    "manuals.pages": (Decimal("0.02"), "reduced", 500),
    "training.hours": (Decimal("19.5"), "exempt", 8),
}
FIRST, SECOND = (
    ("Amber", "Birch", "Cobalt", "Delta", "Elm", "Fjord", "Granite", "Harbour", "Iris", "Juniper", "Kestrel", "Linden"),
    ("Analytics", "Bakery", "Clinic", "Design", "Energy", "Foods", "Games", "Logistics", "Media", "Optics", "Tools"),
)


@dataclass(frozen=True)
class SampleCustomer:
    code: str
    name: str
    email: str
    currency: str
    timezone: str
    country: str


@dataclass(frozen=True)
class SamplePrice:
    metric: str
    currency: str
    unit_price: Decimal
    tax_category: str
    valid_from: date


@dataclass(frozen=True)
class SampleUsage:
    source: str
    key: str
    customer: str
    metric: str
    subject: str
    quantity: Decimal
    occurred_at: str


class Sample:
    """The data of one seed: equal arguments give equal rows, in equal order.

    `customers` is how many, `month` the first day of the period, `lines` how many pairs of metric and subject a small
    customer typically uses, `heavy_share` which part of the customers has a hundred times as many; `idle_share` used
    nothing.
    """

    def __init__(
        self,
        customers: int,
        seed: int,
        month: date,
        *,
        lines: int = 4,
        heavy_share: float = 0.01,
        idle_share: float = 0.02,
    ) -> None:
        self._seed = seed
        self._month = month
        self._lines = lines
        self._heavy = max(1, round(customers * heavy_share))
        self._idle_share = idle_share
        ranks = list(range(customers))
        random.Random(f"{seed}").shuffle(ranks)  # noqa: S311 - a sample, no secret
        self._ranks = ranks

    def customers(self) -> Iterator[SampleCustomer]:
        for number in range(len(self._ranks)):
            chosen = self._random(number)
            code = f"C{number + 1:05}"
            currency, timezone, country = HOMES[chosen.randrange(len(HOMES))] if number >= len(HOMES) else HOMES[number]
            name = f"{chosen.choice(FIRST)} {chosen.choice(SECOND)} {number + 1}"
            yield SampleCustomer(code, name, f"billing@{code.lower()}.example", currency, timezone, country)

    def prices(self) -> Iterator[SamplePrice]:
        for metric, (dollars, category, _) in METRICS.items():
            for currency, factor in CURRENCIES.items():
                unit_price = (dollars * factor).normalize()
                yield SamplePrice(metric, currency, unit_price, category, date(self._month.year - 1, 1, 1))

    def usage(self) -> Iterator[SampleUsage]:
        for number, customer in enumerate(self.customers()):
            chosen = self._random(number, "usage")
            start, end = self._bounds(ZoneInfo(customer.timezone))
            event = 0
            for line in range(self._line_count(number, chosen)):
                metric = chosen.choice(tuple(METRICS))
                subject = f"{metric.partition('.')[0]}-{line + 1:04}"
                for _ in range(chosen.randint(1, 4)):
                    event += 1
                    at = self._moment(chosen, start, end, event)
                    quantity = Decimal(chosen.randrange(1, METRICS[metric][2] * 1000)).scaleb(-3).normalize()
                    key = f"{customer.code}-{self._month:%Y%m}-{event:06}"
                    yield SampleUsage("sample", key, customer.code, metric, subject, quantity, at.isoformat())

    def _line_count(self, number: int, chosen: random.Random) -> int:
        typical = max(1, self._lines + chosen.randint(-2, 2))
        if self._ranks[number] < self._heavy:
            return 100 * typical
        if self._ranks[number] < self._heavy * 10:
            return 10 * typical
        return 0 if chosen.random() < self._idle_share else typical

    def _bounds(self, zone: ZoneInfo) -> tuple[datetime, datetime]:
        after = (self._month + timedelta(days=31)).replace(day=1)
        return (
            datetime.combine(self._month, time(), zone).astimezone(UTC),
            datetime.combine(after, time(), zone).astimezone(UTC),
        )

    @staticmethod
    def _moment(chosen: random.Random, start: datetime, end: datetime, event: int) -> datetime:
        if event == 1:
            return start
        if event == 2:
            return end - timedelta(seconds=1)
        return start + timedelta(seconds=chosen.randrange(int((end - start).total_seconds())))

    def _random(self, number: int, what: str = "") -> random.Random:
        return random.Random(f"{self._seed}:{number}:{what}")  # noqa: S311 - a sample, no secret
