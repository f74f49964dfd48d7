"""The admin: what is leased now, what was, what went wrong, and what people did about it."""

from datetime import timedelta
from typing import Any, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils import formats, timezone

from leases.breaking import break_lease
from leases.errors import LeaseError
from leases.headroom import BUCKETS, measure
from leases.inspecting import Inspector
from leases.inspection import live_states
from leases.jobs import admin as job_admin  # noqa: F401 - registers its pages
from leases.models import Fence, HeldLease, Incident, Intervention, LeaseRecord

#: A person who breaks more at once should use the command, and think again.
MOST_BROKEN_AT_ONCE = 100


class LiveChangeList(ChangeList):
    """Asks Redis once for all leases of the page."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = cast(Any, with_live_state(list(self.result_list)))


def with_live_state(leases: list[HeldLease]) -> list[HeldLease]:
    """Return the leases, each with `live` set, after one round trip to Redis."""
    for lease, live in zip(leases, live_states(leases), strict=True):
        lease.live = live
    return leases


def _described(lease: HeldLease) -> str:
    since = formats.localize(timezone.localtime(lease.acquired_at))
    return f"{lease.resource}, held by process {lease.pid} on {lease.host} since {since} ({lease.live})"


class BreakForm(forms.Form):
    reason = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 3, "cols": 80}), help_text="For those who ask later; it is kept."
    )


@admin.register(HeldLease)
class HeldLeaseAdmin(Inspector):
    list_display = ["resource", "left", "token", "acquired_at", "process", "thread"]
    search_fields = ["resource__startswith"]
    search_help_text = "The beginning of a resource's name."
    list_filter = ["host"]
    ordering = ["acquired_at"]
    date_hierarchy = "acquired_at"
    actions = ["break_selected"]
    exclude = ["ended_at", "end"]
    readonly_fields = ["left"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[HeldLease]:
        return super().get_queryset(request).filter(ended_at=None)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return LiveChangeList

    # Breaking commits before it deletes the key, so it must not run inside the request's transaction.
    @transaction.non_atomic_requests
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, extra_context)

    @admin.display(description="time left")
    def left(self, lease: HeldLease) -> str:
        if lease.live is None:
            with_live_state([lease])
        texts = {"taken": "taken by another holder", "unknown": "unknown: Redis does not answer"}
        return texts.get(lease.live.state, str(lease.live)) if lease.live else ""

    @admin.display(description="process")
    def process(self, lease: HeldLease) -> str:
        return f"{lease.pid} on {lease.host}"

    def has_break_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("leases.break_lease")

    @admin.action(description="Break selected leases", permissions=["break"])
    def break_selected(self, request: HttpRequest, queryset: QuerySet[HeldLease]) -> HttpResponse | None:
        if not self.has_break_permission(request):
            raise PermissionDenied
        leases = list(queryset[: MOST_BROKEN_AT_ONCE + 1])
        if len(leases) > MOST_BROKEN_AT_ONCE:
            text = f"At most {MOST_BROKEN_AT_ONCE} leases can be broken at once; nothing was changed."
            self.message_user(request, text, messages.ERROR)
            return None
        form = BreakForm(request.POST if "confirmed" in request.POST else None)
        if form.is_valid():
            self._break(request, leases, form.cleaned_data["reason"])
            return None
        context = {
            **self.admin_site.each_context(request),
            "title": "Break leases",
            "opts": self.opts,
            "rows": [(lease.pk, _described(lease)) for lease in with_live_state(leases)],
            "text": (
                "The holders of these leases can write no more from then on, whatever they are doing; others may start "
                "at once. Their processes are not stopped: a holder that is alive finds out when it renews or writes, "
                "and its job runs again."
            ),
            "verb": "Break them",
            "form": form,
            "action": "break_selected",
            "action_checkbox_name": ACTION_CHECKBOX_NAME,
            "media": self.media + form.media,
        }
        return TemplateResponse(request, "admin/leases/confirm.html", context)

    def _break(self, request: HttpRequest, leases: list[HeldLease], reason: str) -> None:
        selected = len(set(request.POST.getlist(ACTION_CHECKBOX_NAME)))
        if len(leases) < selected:
            self.message_user(request, f"{selected - len(leases)} had already ended.", messages.WARNING)
        for lease in leases:
            try:
                break_lease(
                    lease.resource,
                    token=lease.token,
                    reason=reason,
                    by=request.user.get_username(),
                    using=cast(str, lease._state.db),
                )
            except LeaseError as error:
                self.message_user(request, str(error), messages.ERROR)
            else:
                self.message_user(
                    request, f"Broke the lease on {lease.resource}: its holder can write no more.", messages.SUCCESS
                )


@admin.register(LeaseRecord)
class LeaseRecordAdmin(Inspector):
    change_list_template = "admin/leases/leaserecord/change_list.html"
    list_display = ["resource", "token", "acquired_at", "held_for", "end", "host", "pid"]
    search_fields = ["resource__startswith"]
    search_help_text = "The beginning of a resource's name."
    list_filter = ["end"]
    ordering = ["-acquired_at"]
    date_hierarchy = "acquired_at"
    actions = None

    @admin.display(description="held for", empty_value="has not ended")
    def held_for(self, record: LeaseRecord) -> timedelta | None:
        return None if record.ended_at is None else record.ended_at - record.acquired_at

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.headroom_view)
        return [path("headroom/", view, name="leases_headroom"), *super().get_urls()]

    def headroom_view(self, request: HttpRequest) -> HttpResponse:
        """Show how much of its ttl each kind of resource is held for."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "title": "Headroom",
            "opts": self.opts,
            "kinds": measure(),
            "buckets": BUCKETS,
        }
        return TemplateResponse(request, "admin/leases/headroom.html", context)


@admin.register(Fence)
class FenceAdmin(Inspector):
    # No order or hierarchy by time: an index on it would make every acquisition dearer.
    list_display = ["resource", "token", "changed_at", "holder"]
    search_fields = ["resource__startswith"]
    search_help_text = "The beginning of a resource's name."
    ordering = ["resource"]
    actions = None


@admin.register(Incident)
class IncidentAdmin(Inspector):
    list_display = ["resource", "fate", "seen_at", "detector", "host", "pid", "token"]
    search_fields = ["resource__startswith"]
    search_help_text = "The beginning of a resource's name."
    list_filter = ["fate", "detector"]
    ordering = ["-seen_at"]
    date_hierarchy = "seen_at"
    actions = None


@admin.register(Intervention)
class InterventionAdmin(Inspector):
    list_display = ["at", "action", "resource", "by", "database_role", "reason"]
    search_fields = ["resource__startswith", "by__exact"]
    search_help_text = "The beginning of a resource's name, or a person."
    list_filter = ["action"]
    ordering = ["-at"]
    date_hierarchy = "at"
    actions = None
