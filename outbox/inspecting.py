"""Read-only pages of the admin that stay quick with millions of rows."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.http import HttpRequest
from django.utils.functional import cached_property

if TYPE_CHECKING:
    AnyPaginator = Paginator[Any]
    AnyModelAdmin = admin.ModelAdmin[Any]
    AnyTabularInline = admin.TabularInline[Any, Any]
else:
    AnyPaginator, AnyModelAdmin, AnyTabularInline = Paginator, admin.ModelAdmin, admin.TabularInline

#: Rows are counted up to this; nobody turns more pages, they filter or search.
COUNTED = 10_000


class ShortPaginator(AnyPaginator):
    """Counts at most 10,001 rows."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by()[: COUNTED + 1].count())


class ReadOnly:
    """Shows rows and changes none: messages are written by publish() and the drainers, decisions by the actions."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class Inspector(ReadOnly, AnyModelAdmin):
    """A list that is neither counted to its end nor changed."""

    list_per_page = 50
    show_full_result_count = False
    # Counting the rows behind each filter, and sorting by what no index has in order, read the whole table.
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    paginator = ShortPaginator
