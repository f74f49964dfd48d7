"""Actions that ask before they act, and leave an entry in the history of each row."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from billing import outages
from billing.admin.inspecting import FastAdmin
from billing.errors import BillingError
from leases.errors import LeaseError

#: Each row takes its customer's lease, and all of them one request.
MOST_ROWS = 200
#: Rows named on the page that asks, and errors named on the page that follows.
SHOWN_ROWS = 20

Act = Callable[[Any, dict[str, Any]], str]


class ReasonForm(forms.Form):
    """Why it is done; it is kept with what is done."""

    reason = forms.CharField(max_length=500, widget=forms.Textarea(attrs={"rows": 3, "cols": 60}))

    def __init__(self, *args: Any, rows: Sequence[Any], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rows = rows


@dataclass(frozen=True, slots=True)
class Question:
    """What the page asks: a title, what will come of it, and the word on the button."""

    title: str
    consequence: str
    button: str


def confirmed(
    question: Question, *, permission: str, form: type[ReasonForm] = ReasonForm, one_at_a_time: bool = False
) -> Callable[[Act], Callable[..., HttpResponse | None]]:
    """Make `act(row, answers)` an admin action that first asks, with a reason to be given.

    `act` does it to one row, outside any transaction (it may take a lease), and returns what came of it. An entry with
    the reason is written to the row's history before, so that nothing is done without one; and another if `act` raises
    a BillingError or a LeaseError, or the database did not let it, which is shown and stops no other row.
    """

    def decorate(act: Act) -> Callable[..., HttpResponse | None]:
        @admin.action(description=question.title, permissions=[permission])
        @functools.wraps(act)
        def action(page: FastAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
            most = 1 if one_at_a_time else MOST_ROWS
            rows = list(queryset.order_by("pk")[: most + 1])
            if len(rows) > most:
                page.message_user(request, f"Select {most} at most for this action.", messages.ERROR)
                return None
            # Of a list that is selected as a whole, the browser names the rows of one page only.
            if (gone := len(set(request.POST.getlist(ACTION_CHECKBOX_NAME))) - len(rows)) > 0:
                text = f"Nothing is done with {gone} of the selected: changed meanwhile, so no longer in this list."
                page.message_user(request, text, messages.WARNING)
            if not rows:
                return None
            answers = form(request.POST if "confirmed" in request.POST else None, rows=rows)
            if not answers.is_bound or not answers.is_valid():
                return _ask(page, request, question, rows, answers)
            _act(page, request, question, rows, lambda row: act(row, answers.cleaned_data), answers)
            if "from_page" in request.POST:
                name = f"admin:{page.opts.app_label}_{page.opts.model_name}_change"
                return HttpResponseRedirect(reverse(name, args=[rows[0].pk]))
            return None

        return action

    return decorate


def _ask(
    page: FastAdmin, request: HttpRequest, question: Question, rows: Sequence[Any], answers: ReasonForm
) -> HttpResponse:
    context = {
        **page.admin_site.each_context(request),
        "title": question.title,
        "question": question,
        "answers": answers,
        "rows": rows,
        "shown": rows[:SHOWN_ROWS],
        "hidden": max(0, len(rows) - SHOWN_ROWS),
        "opts": page.opts,
        "media": page.media + answers.media,
        "action": request.POST["action"],
        "checkbox": ACTION_CHECKBOX_NAME,
        "from_page": "from_page" in request.POST,
    }
    return TemplateResponse(request, "admin/billing/confirmation.html", context)


def _act(
    page: FastAdmin,
    request: HttpRequest,
    question: Question,
    rows: Sequence[Any],
    act: Callable[[Any], str],
    answers: ReasonForm,
) -> None:
    done, refused = [], []
    for row in rows:
        page.log_change(request, row, f"{question.title}: {answers.cleaned_data['reason']}")
        try:
            done.append(f"{row}: {act(row)}")
        except (BillingError, LeaseError) as error:
            page.log_change(request, row, f"Not done: {error}")
            refused.append(f"{row}: {error}")
        except outages.OUTAGE as error:
            page.log_change(request, row, f"Broken off: {outages.cause(error)}")
            refused.append(f"{row}: broken off, look before you try again ({outages.cause(error)})")
    for level, lines in ((messages.SUCCESS, done), (messages.ERROR, refused)):
        for line in lines[:SHOWN_ROWS]:
            page.message_user(request, line, level)
        if len(lines) > SHOWN_ROWS:
            page.message_user(request, f"and {len(lines) - SHOWN_ROWS} more", level)
