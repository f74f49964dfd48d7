"""The admin's date hierarchy over times that have no index, where the primary key goes up as they do.

Such an index would be written with every row, for the few who look. The keys answer as well: a search by halves finds
where a day begins, and the days between the first row and the last are counted off, whether or not there are rows.
"""

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.contrib.admin.views.main import ChangeList
from django.db import connections
from django.db.models import Max, Min, Model, Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone

if TYPE_CHECKING:
    AnyQuerySet = QuerySet[Any]
else:
    AnyQuerySet = QuerySet

#: A row's time is when its transaction began, so it may be earlier than that of a smaller key. Rows of transactions
#: that went on for longer may be missing under the day before midnight.
SLACK = timedelta(minutes=5)

# Each round looks at one row and halves the range of keys.
_FIRST_KEY = """
WITH RECURSIVE search (low, high) AS (
  SELECT min({key}), max({key}) + 1 FROM {table}
  UNION ALL
  SELECT CASE WHEN found.at < %(moment)s + %(slack)s THEN found.key + 1 ELSE low END,
         CASE WHEN found.at < %(moment)s + %(slack)s THEN high ELSE low + (high - low) / 2 END
    FROM search CROSS JOIN LATERAL (
      SELECT {key} AS key, {at} AS at FROM {table} WHERE {key} >= low + (high - low) / 2 ORDER BY {key} LIMIT 1) found
   WHERE low < high)
SELECT low FROM search WHERE low = high
"""


@dataclass(frozen=True, slots=True)
class Times:
    """A column of times whose model has integer keys that go up as they do.

    Where it is a related model's, of which there are few rows to many (a run of items), `relation` is the field's name.
    """

    model: type[Model]
    column: str
    relation: str = ""

    @classmethod
    def named(cls, model: type[Model], path: str) -> "Times":
        """Return what `path` names: a column of the model (`created_at`), or of a related one (`run__created_at`)."""
        relation, _, column = path.rpartition("__")
        related: Any = model._meta.get_field(relation).related_model if relation else model
        return cls(related, column, relation)

    def ends(self, using: str) -> tuple[date, date] | None:
        """Return the days of the first and the last row in the current time zone, or None if there is none."""
        times = self.model._base_manager.using(using).values_list(self.column, flat=True)
        first, last = times.order_by("pk").first(), times.order_by("-pk").first()
        return None if first is None or last is None else (_day(first), _day(last))

    def within(self, since: datetime, until: datetime, using: str) -> Q:
        """Return the range of keys that holds all rows from `since` to `until`, and hardly any others.

        The planner takes the rows of a day to lie anywhere; by their keys it reads them alone.
        """
        if self.relation:
            these = self.model._base_manager.using(using).filter(
                **{f"{self.column}__gte": since, f"{self.column}__lt": until}
            )
            ends = these.aggregate(low=Min("pk"), high=Max("pk"))
            low, high = ends["low"] or 0, (ends["high"] or -1) + 1
        else:
            low, high = (self._first_key(at, slack, using) for at, slack in ((since, -SLACK), (until, SLACK)))
        key = self.relation or "pk"
        return Q(**{f"{key}__gte": low, f"{key}__lt": high})

    def _first_key(self, moment: datetime, slack: timedelta, using: str) -> int:
        meta: Any = self.model._meta
        names = {"table": meta.db_table, "key": meta.pk.column, "at": meta.get_field(self.column).column}
        quoted = {what: connections[using].ops.quote_name(name) for what, name in names.items()}
        parameters: dict[str, Any] = {"moment": moment, "slack": slack}
        with connections[using].cursor() as cursor:
            cursor.execute(_FIRST_KEY.format(**quoted), parameters)
            row = cursor.fetchone()
        return int(row[0]) if row else 0


class _DatedQuerySet(AnyQuerySet):
    """Answers what the hierarchy asks: the first and the last time, and the years, months or days in between."""

    times: Times
    between: tuple[date, date] | None

    def aggregate(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if kwargs.keys() != {"first", "last"}:
            return super().aggregate(*args, **kwargs)
        first, last = self.times.ends(self.db) or (None, None)
        return {"first": first and _midnight(first), "last": last and _midnight(last)}

    def datetimes(self, field_name: str, kind: str, order: str = "ASC", tzinfo: Any = None) -> Any:
        ends = self.times.ends(self.db)
        if ends is None:
            return []
        first, last = ends
        if self.between:
            first, last = max(first, self.between[0]), min(last, self.between[1] - timedelta(days=1))
        found, day = [], first_day(first, kind)
        while day <= last:
            found.append(_midnight(day))
            day = next_first_day(day, kind)
        return found


class DatedChangeList(ChangeList):
    """A list whose `date_hierarchy` names times that go up with the primary key."""

    between: tuple[date, date] | None = None

    def get_filters(self, request: HttpRequest) -> Any:
        found = super().get_filters(request)
        name = str(self.date_hierarchy)
        lookups: dict[str, Any] = found[2]
        # Django makes these two of year, month and day; in an address that somebody wrote they are texts.
        ends = [lookups.get(f"{name}__{end}", [None])[-1] for end in ("gte", "lt")]
        if all(isinstance(moment, datetime) for moment in ends):
            since, until = ends
            self.between = _day(since), _day(until)
            keys = Times.named(self.model, name).within(since, until, self.root_queryset.db)
            self.root_queryset = self.root_queryset.filter(keys)
        return found

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        found = super().get_queryset(request, *args, **kwargs)
        dated = _DatedQuerySet(model=found.model, query=found.query, using=found.db)
        dated.times, dated.between = Times.named(self.model, str(self.date_hierarchy)), self.between
        return dated


def first_day(day: date, kind: str) -> date:
    """Return the first day of the year or the month that `day` lies in, or `day` itself."""
    return {"year": day.replace(month=1, day=1), "month": day.replace(day=1), "day": day}[kind]


def next_first_day(day: date, kind: str) -> date:
    """Return the first day of the year or month after that of `day`, which is a first day itself, or the next day."""
    return first_day(day + timedelta(days={"year": 366, "month": 31, "day": 1}[kind]), kind)


def _day(moment: datetime) -> date:
    return (timezone.localtime(moment) if timezone.is_aware(moment) else moment).date()


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day)
