"""The admin: every message with all its attempts, and the decisions about those that need a person."""

import json
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from outbox import channels
from outbox.dates import DatedChangeList
from outbox.decisions import Action, decide, may_be
from outbox.errors import DecisionRefused
from outbox.inspecting import AnyTabularInline, Inspector, ReadOnly
from outbox.models import Decision, Message

#: A person who decides about more at once should use the command, and think again.
MOST_AT_ONCE = 100


class ChannelFilter(admin.SimpleListFilter):
    """The configured channels, without asking a million rows for theirs."""

    title = "channel"
    parameter_name = "channel"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in channels.names()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Message]) -> QuerySet[Message]:
        return queryset.filter(channel=self.value()) if self.value() else queryset


class ReasonForm(forms.Form):
    reason = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 3, "cols": 80}), help_text="For those who ask later; it is kept."
    )


class DecisionInline(ReadOnly, AnyTabularInline):
    model = Decision
    fields = ["at", "action", "by", "reason", "state_before", "state_after"]

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Who may see a message may see what was decided about it."""
        return request.user.has_perm("outbox.view_message")


@admin.register(Message)
class MessageAdmin(Inspector):
    list_display = ["id", "state", "dedupe_key", "channel", "attempts", "available_at", "created_at", "trouble"]
    list_display_links = ["id", "dedupe_key"]
    list_filter = ["state", ChannelFilter, "created_at"]
    search_fields = ["dedupe_key"]
    search_help_text = "A whole dedupe key, or #number."
    ordering = ["-id"]
    date_hierarchy = "created_at"
    inlines = [DecisionInline]
    actions = ["it_arrived", "send_again", "requeue", "cancel"]
    exclude = ["payload", "history", "refused"]
    readonly_fields = ["content", "attempts_so_far", "refused_recipients"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Message]:
        return super().get_queryset(request).defer("payload", "history")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[DatedChangeList]:
        return DatedChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Message], search_term: str
    ) -> tuple[QuerySet[Message], bool]:
        if not search_term:
            return queryset, False
        number = search_term.removeprefix("#")
        by_number = search_term.startswith("#") and number.isdecimal() and len(number) < 20
        return queryset.filter(id=int(number)) if by_number else queryset.filter(dedupe_key=search_term), False

    # Each decision is a transaction of its own: one that is refused must not undo the others.
    @transaction.non_atomic_requests
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, extra_context)

    def has_decide_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("outbox.decide_message")

    @admin.display(description="last error")
    def trouble(self, message: Message) -> str:
        return message.last_error[:80]

    @admin.display(description="content")
    def content(self, message: Message) -> SafeString:
        payload: Any = message.payload
        if isinstance(payload, dict) and isinstance(payload.get("raw"), str):
            payload = dict(payload)
            raw = payload.pop("raw")
            return format_html("<pre>{}</pre><pre>{}</pre>", _pretty(payload), raw)
        return format_html("<pre>{}</pre>", "pruned" if payload is None else _pretty(payload))

    @admin.display(description="attempts that were not accepted")
    def attempts_so_far(self, message: Message) -> SafeString | str:
        entries = [
            (entry.get("attempt"), entry.get("at"), entry.get("drainer"), entry.get("outcome"), entry.get("answer"))
            for entry in message.history
        ]
        return format_html_join("", "<p>{}. {} by {}: {}: {}</p>", entries) or "none"

    @admin.display(description="refused recipients")
    def refused_recipients(self, message: Message) -> SafeString | str:
        return format_html_join("", "<p>{}: {}</p>", message.refused.items()) or "none"

    @admin.action(description="It arrived (in doubt → sent)", permissions=["decide"])
    def it_arrived(self, request: HttpRequest, queryset: QuerySet[Message]) -> HttpResponse | None:
        return self._decide(request, queryset, Action.ARRIVED)

    @admin.action(description="Send again (in doubt → pending)", permissions=["decide"])
    def send_again(self, request: HttpRequest, queryset: QuerySet[Message]) -> HttpResponse | None:
        return self._decide(request, queryset, Action.SEND_AGAIN)

    @admin.action(description="Requeue (dead → pending)", permissions=["decide"])
    def requeue(self, request: HttpRequest, queryset: QuerySet[Message]) -> HttpResponse | None:
        return self._decide(request, queryset, Action.REQUEUE)

    @admin.action(description="Cancel (never send)", permissions=["decide"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[Message]) -> HttpResponse | None:
        return self._decide(request, queryset, Action.CANCEL)

    def _decide(self, request: HttpRequest, queryset: QuerySet[Message], action: Action) -> HttpResponse | None:
        chosen = list(queryset[: MOST_AT_ONCE + 1])
        if len(chosen) > MOST_AT_ONCE:
            text = f"Choose at most {MOST_AT_ONCE} messages, or use 'manage.py outbox'."
            self.message_user(request, text, messages.ERROR)
            return None
        form = ReasonForm(request.POST if "confirmed" in request.POST else None)
        if not form.is_valid():
            return self._ask(request, chosen, action, form)
        done = 0
        for message in chosen:
            try:
                by = request.user.get_username()
                decide(action, message.id, reason=form.cleaned_data["reason"], by=by)
                done += 1
            except DecisionRefused as error:
                self.message_user(request, str(error), messages.ERROR)
        self.message_user(request, f"{action.value.capitalize()}: {done} of {len(chosen)}.", messages.SUCCESS)
        return None

    def _ask(self, request: HttpRequest, chosen: list[Message], action: Action, form: ReasonForm) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": f"{action.value.capitalize()}?",
            "opts": self.model._meta,
            "chosen": chosen,
            "meant": [message for message in chosen if may_be(action, message)],
            "left_alone": [message for message in chosen if not may_be(action, message)],
            "consequence": _CONSEQUENCES[action],
            "form": form,
            "action": request.POST["action"],
            "action_checkbox_name": ACTION_CHECKBOX_NAME,
        }
        return TemplateResponse(request, "admin/outbox/decide.html", context)


_CONSEQUENCES = {
    Action.ARRIVED: "These messages count as sent from then on, and can never be sent again.",
    Action.SEND_AGAIN: "These messages are sent once more. If the receiver has one already, it gets two.",
    Action.REQUEUE: "These messages are tried again from the beginning.",
    Action.CANCEL: "These messages are never sent, and that cannot be undone.",
}


def _pretty(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
