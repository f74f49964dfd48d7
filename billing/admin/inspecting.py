"""A list and a page for rows that the system writes; fast with millions of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.http import urlencode

from billing.admin.dates import DatedQuerySet
from billing.admin.paging import BoundedPaginator
from outbox.dates import DatedChangeList

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


class Page(ChangeList):
    """One page of a list; what its columns show beside the rows is read once for all of them."""

    model_admin: "FastAdmin"

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)
        self.model_admin.look_up(self.result_list)


class DatedPage(DatedChangeList, Page):
    """A page of a list whose times go up with the primary key and have no index."""


class FastAdmin(ModelAdmin):
    """Never counts a table to its end, and sorts only by what an index has in order."""

    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    sortable_by = ()

    class Media:
        css = {"all": ["billing/admin.css"]}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = DatedQuerySet(self.model).order_by(*self.get_ordering(request))
        return rows

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return Page

    def look_up(self, rows: Sequence[Any]) -> None:
        """Add to the rows of a page what its columns show and the rows do not have, in one query for all."""

    # Actions take leases, which cannot be had inside the request's transaction.
    @transaction.non_atomic_requests
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, extra_context)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if self.get_object(request, unquote(object_id)) is None:  # Django says so, whatever the address holds
            return super().change_view(request, object_id, form_url, extra_context)
        allowed = self.get_action_choices(request, default_choices=[])
        actions = [(name, title) for name, title in allowed if self.offers(name, object_id)]
        links = self.row_links(request, object_id)
        return super().change_view(
            request, object_id, form_url, {"row_actions": actions, "row_links": links, **(extra_context or {})}
        )

    def offers(self, action: str, object_id: str) -> bool:
        """Say whether the action makes sense on the page of this row."""
        return action != "delete_selected"

    def row_links(self, request: HttpRequest, object_id: str) -> list[tuple[str, str]]:
        """Return address and text of the links beside the row's actions."""
        return []


class Inspector(FastAdmin):
    """Shows rows that the system writes; nobody adds, changes or deletes them by hand."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def link(row: Any, text: object = None) -> str:
    """Return a link to the row's page, or just the text where it has none."""
    if row is None:
        return "-"
    return _anchor(
        f"admin:{row._meta.app_label}_{row._meta.model_name}_change", row if text is None else text, [row.pk]
    )


def list_link(model: type[Any], text: object, **filters: str | int) -> str:
    """Return a link to the model's list with these filters on."""
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist"
    return _anchor(name, text, [], f"?{urlencode(filters)}" if filters else "")


def _anchor(name: str, text: object, args: Sequence[object], query: str = "") -> str:
    try:
        url = reverse(name, args=args)
    except NoReverseMatch:  # not registered with this site
        return str(text)
    return format_html('<a href="{}{}">{}</a>', url, query, text)
