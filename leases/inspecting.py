"""Read-only pages of the admin that stay quick with millions of rows."""

from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.functional import cached_property

if TYPE_CHECKING:
    AnyPaginator = Paginator[Any]
    AnyModelAdmin = admin.ModelAdmin[Any]
    AnyQuerySet = QuerySet[Any]
else:
    AnyPaginator = Paginator
    AnyModelAdmin = admin.ModelAdmin
    AnyQuerySet = QuerySet

#: Rows are counted up to this; nobody turns more pages, they filter or search.
COUNTED = 10_000


class BoundedPaginator(AnyPaginator):
    """Counts at most 10,001 rows: the rest can be found, but not paged through."""

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        if isinstance(rows, QuerySet):
            return rows.order_by()[: COUNTED + 1].count()
        return len(rows)


class SteppingQuerySet(AnyQuerySet):
    """Finds the dates of the admin's hierarchy by stepping through an index, one short look per date.

    Django's own query truncates the time of every row: 1.5 s for a million.
    """

    def datetimes(  # type: ignore[override]  # a list does where Django gives a queryset
        self, field_name: str, kind: str, order: str = "ASC", tzinfo: tzinfo | None = None
    ) -> list[datetime]:
        if order != "ASC" or kind not in ("year", "month", "day"):
            raise ValueError(f"expected years, months or days ascending, got {kind!r} {order!r}")
        times = self.order_by(field_name).values_list(field_name, flat=True)
        found: list[datetime] = []
        first = times.first()
        while first is not None:
            start = _truncated(timezone.localtime(first, tzinfo) if timezone.is_aware(first) else first, kind)
            found.append(start)
            first = times.filter(**{f"{field_name}__gte": _next(start, kind)}).first()
        return found


class Inspector(AnyModelAdmin):
    """Shows rows and changes none."""

    list_per_page = 50
    show_full_result_count = False
    # Counting the rows behind each filter, and sorting by what no index has in order, read the whole table.
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    paginator = BoundedPaginator

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        plain = super().get_queryset(request)
        return SteppingQuerySet(model=self.model, query=plain.query, using=plain.db)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def _truncated(moment: datetime, kind: str) -> datetime:
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    return day if kind == "day" else day.replace(day=1) if kind == "month" else day.replace(day=1, month=1)


def _next(start: datetime, kind: str) -> datetime:
    if kind == "year":
        return start.replace(year=start.year + 1)
    if kind == "month":
        return start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
    return start + timedelta(days=1)
