"""The admin of jobs: receipts, dead letters, queues, schedules."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from redis.exceptions import RedisError

from leases.errors import LeaseError
from leases.inspecting import Inspector
from leases.jobs.discovery import import_actors
from leases.jobs.models import DeadLetter, Queue, Receipt, Reopening, Slot

#: A person who acts on more at once should use the commands, and think again.
MOST_AT_ONCE = 100


class ReasonForm(forms.Form):
    reason = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 3, "cols": 80}), help_text="For those who ask later; it is kept."
    )


class StateFilter(admin.SimpleListFilter):
    title = "replayed"
    parameter_name = "replayed"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("no", "not yet"), ("yes", "replayed")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is None:
            return queryset
        return queryset.filter(replayed_at__isnull=self.value() == "no")


class JobInspector(Inspector):
    """Shows rows; its actions are asked first, and carried out one row after another."""

    def ask(
        self, request: HttpRequest, queryset: QuerySet[Any], *, action: str, text: str, verb: str, needs_reason: bool
    ) -> tuple[list[Any], str] | HttpResponse | None:
        """Return the rows and the reason once the person has confirmed, else what to show to him."""
        rows = list(queryset[: MOST_AT_ONCE + 1])
        if len(rows) > MOST_AT_ONCE:
            self.message_user(request, f"At most {MOST_AT_ONCE} at once; nothing was changed.", messages.ERROR)
            return None
        confirmed = "confirmed" in request.POST
        form = ReasonForm(request.POST if confirmed else None) if needs_reason else None
        if confirmed and (form is None or form.is_valid()):
            return rows, form.cleaned_data["reason"] if form else ""
        context = {
            **self.admin_site.each_context(request),
            "title": verb,
            "opts": self.opts,
            "rows": [(row.pk, str(row)) for row in rows],
            "text": text,
            "verb": verb,
            "form": form,
            "action": action,
            "action_checkbox_name": ACTION_CHECKBOX_NAME,
            "media": self.media + form.media if form else self.media,
        }
        return TemplateResponse(request, "admin/leases/confirm.html", context)


@admin.register(Receipt)
class ReceiptAdmin(JobInspector):
    list_display = ["key", "state", "ran_at", "asked_again", "last_asked_at", "attempts", "actor"]
    search_fields = ["key__startswith"]
    search_help_text = "The beginning of a key."
    list_filter = ["state"]
    ordering = ["-ran_at"]
    date_hierarchy = "ran_at"
    actions = ["reopen_selected"]

    # A run outside the database is asked for by its lease, which is not taken inside a transaction.
    @transaction.non_atomic_requests
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, extra_context)

    def has_reopen_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("leases.reopen_receipt")

    @admin.action(description="Open selected keys again", permissions=["reopen"])
    def reopen_selected(self, request: HttpRequest, queryset: QuerySet[Receipt]) -> HttpResponse | None:
        from leases.jobs.reopening import reopen

        if not self.has_reopen_permission(request):
            raise PermissionDenied
        answer = self.ask(
            request,
            queryset,
            action="reopen_selected",
            text="Their jobs take effect once more with their next message, which may be queued already.",
            verb="Open keys again",
            needs_reason=True,
        )
        if not isinstance(answer, tuple):
            return answer
        for receipt in answer[0]:
            try:
                reopen(receipt.key, by=request.user.get_username(), reason=answer[1], using=receipt._state.db)
            except (LeaseError, RedisError) as error:
                self.message_user(request, str(error), messages.ERROR)
            else:
                self.message_user(request, f"Opened {receipt.key}.", messages.SUCCESS)
        return None


@admin.register(Reopening)
class ReopeningAdmin(JobInspector):
    list_display = ["key", "reopened_at", "by", "reason", "state", "ran_at"]
    search_fields = ["key__startswith", "by__exact"]
    search_help_text = "The beginning of a key, or a person."
    ordering = ["-id"]
    actions = None


@admin.register(DeadLetter)
class DeadLetterAdmin(JobInspector):
    list_display = ["actor", "queue", "died_at", "short_reason", "key", "replayed_at", "replayed_by"]
    search_fields = ["message_id__exact", "key__startswith"]
    search_help_text = "A message's id, or the beginning of a key."
    list_filter = [StateFilter]
    ordering = ["-died_at"]
    date_hierarchy = "died_at"
    actions = ["replay_selected"]

    @admin.display(description="reason")
    def short_reason(self, letter: DeadLetter) -> str:
        return letter.reason[:100]

    # A replay is noted before its message leaves.
    @transaction.non_atomic_requests
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, extra_context)

    def has_replay_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("leases.replay_deadletter")

    @admin.action(description="Replay selected dead letters", permissions=["replay"])
    def replay_selected(self, request: HttpRequest, queryset: QuerySet[DeadLetter]) -> HttpResponse | None:
        from leases.jobs.dead_letters import replay

        if not self.has_replay_permission(request):
            raise PermissionDenied
        answer = self.ask(
            request,
            queryset,
            action="replay_selected",
            text="Their messages go back to their queues with all their retries. What is done already, or was replayed "
            "before, is left out.",
            verb="Replay",
            needs_reason=False,
        )
        if not isinstance(answer, tuple):
            return answer
        for letter in answer[0]:
            try:
                replay(letter, by=request.user.get_username())
            except LeaseError as error:
                self.message_user(request, str(error), messages.ERROR)
            except Exception as error:
                # Whatever kept the broker from taking it: the letter is as it was.
                self.message_user(request, f"{letter} could not be enqueued: {error!r}", messages.ERROR)
            else:
                self.log_change(request, letter, "Replayed.")
                self.message_user(request, f"Enqueued {letter} again.", messages.SUCCESS)
        return None


@admin.register(Slot)
class SlotAdmin(JobInspector):
    list_display = ["schedule", "due_at", "state", "recorded_at", "message_id"]
    list_filter = ["state"]
    search_fields = ["schedule__exact"]
    search_help_text = "A schedule's name."
    ordering = ["-id"]
    actions = None


def _measured() -> tuple[list[Any], str]:
    """Return how each queue stands, or why nobody can tell."""
    try:
        from leases.jobs import workload
    except ModuleNotFoundError as missing:  # only projects with jobs have Dramatiq
        return [], f"Jobs need a package that is missing: {missing}. Without jobs there are no queues."
    import_actors()
    try:
        return workload.measure(), ""
    except Exception:
        # The page must tell that the broker is away, whichever broker it is.
        return [], "The broker does not answer. Start it, or correct its address."


@admin.register(Queue)
class QueueAdmin(JobInspector):
    """One page: every queue with its depth, the age of its oldest message, and the workers it takes."""

    actions = None

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        states, error = _measured()
        unreplayed = DeadLetter.objects.filter(replayed_at__isnull=True).order_by().values("queue")
        kept = dict(unreplayed.annotate(number=Count("pk")).values_list("queue", "number"))
        context = {
            **self.admin_site.each_context(request),
            "title": "Queues",
            "opts": self.opts,
            "states": [(state, kept.get(state.queue, 0)) for state in states],
            "error": error,
        }
        return TemplateResponse(request, "admin/leases/queues.html", context)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("leases.view_queue")
