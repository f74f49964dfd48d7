"""Read-only pages of the admin that stay quick with millions of rows."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property

if TYPE_CHECKING:
    AnyPaginator = Paginator[Any]
    AnyModelAdmin = admin.ModelAdmin[Any]
else:
    AnyPaginator = Paginator
    AnyModelAdmin = admin.ModelAdmin

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


class Inspector(AnyModelAdmin):
    """Shows rows and changes none."""

    list_per_page = 50
    show_full_result_count = False
    paginator = BoundedPaginator

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
