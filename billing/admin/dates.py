"""The dates above a list, without reading the list."""

from datetime import date, datetime
from typing import Any

from django.db import models
from django.db.models import Max, Min
from django.utils import timezone

from outbox.dates import first_day, next_first_day


class DatedQuerySet(models.QuerySet[Any]):
    """Finds the years, months or days in which there are rows by one look at the index for each.

    Django's own reads every row to find the few dates that differ.
    """

    def datetimes(self, field_name: str, kind: str, order: str = "ASC", tzinfo: Any = None) -> Any:
        """Return the first moment of each `kind` (year, month or day, in the current time zone) that has a row."""
        plain = self.order_by()
        ends = plain.aggregate(first=Min(field_name), last=Max(field_name))
        if ends["first"] is None:
            return []
        day, last = (first_day(timezone.localdate(ends[end]), kind) for end in ("first", "last"))
        looks = []
        while day <= last:
            within = {f"{field_name}__gte": _midnight(day), f"{field_name}__lt": _midnight(next_first_day(day, kind))}
            looks.append(plain.filter(**within).order_by(field_name).values_list(field_name)[:1])
            day = next_first_day(day, kind)
        rows = looks[0].union(*looks[1:], all=True) if len(looks) > 1 else looks[0]
        return sorted(_midnight(first_day(timezone.localdate(at), kind)) for (at,) in rows)


def _midnight(day: date) -> datetime:
    return timezone.make_aware(datetime(day.year, day.month, day.day))
