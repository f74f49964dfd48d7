"""The admin of the whole project: its order, and what waits for a person, first thing."""

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode

MOST_COUNTED = 1000
#: Nobody closes an incident: it is shown for so long.
INCIDENT_DAYS = 7

APPS = ["billing", "outbox", "leases", "auth", "admin"]
MODELS = [
    "Run", "Item", "Invoice", "CreditNote", "Customer", "Price", "UsageEvent", "TaxAnswer", "Series",
    "Message", "Decision",
    "HeldLease", "Incident", "LeaseRecord", "Fence", "Intervention",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Waiting:
    """So many rows that a person should look at, where they are, and what can be done."""

    count: str
    title: str
    url: str
    advice: str


class Site(admin.AdminSite):
    """Django's admin, in the order of the work: billing, what it sends, what protects it."""

    site_header = "Invoice Once"
    site_title = "Invoice Once"
    index_title = "Overview"
    site_url = None

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        apps = super().get_app_list(request, app_label)
        for app in apps:
            app["models"].sort(key=lambda model: _place(MODELS, model["object_name"]))
        return sorted(apps, key=lambda app: _place(APPS, app["app_label"]))

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        return super().index(request, {"waiting": waiting(request), **(extra_context or {})})


def waiting(request: HttpRequest) -> list[Waiting]:
    """Return what waits for a person, as far as this one may see it."""
    from billing.parking import waiting_items
    from leases.models import Incident
    from outbox.models import Message, State

    may = request.user.has_perm
    found = []
    if may("billing.view_item"):
        url = reverse("admin:billing_item_changelist") + "?outcome=waiting"
        advice = "Each says what is missing. Put it right, then try the item again."
        found.append(_waiting(waiting_items(), "Parked items", url, advice))
    if may("outbox.view_message"):
        messages = Message.objects.filter(state__in=[State.IN_DOUBT, State.DEAD])
        url = reverse("admin:outbox_message_changelist") + "?state__in=in_doubt,dead"
        advice = "In doubt: find out whether it arrived, then decide. Dead: the receiver refused it for good."
        found.append(_waiting(messages, "Messages in doubt or dead", url, advice))
    if may("leases.view_incident"):
        since = _midnight(timezone.localdate() - timedelta(days=INCIDENT_DAYS))
        fates = [Incident.Fate.RUNNING, Incident.Fate.UNKNOWN]
        incidents = Incident.objects.filter(fate__in=fates, seen_at__gte=since)
        shown = urlencode({"fate__in": ",".join(fates), "seen_at__gte": since.isoformat()})
        url = reverse("admin:leases_incident_changelist") + f"?{shown}"
        advice = (
            "A lease ended under a holder that was, or may have been, still running. Its writes were refused, so "
            "there is nothing to undo: find out what held it up."
        )
        found.append(_waiting(incidents, f"Incidents of the last {INCIDENT_DAYS} days", url, advice))
    return found


def _waiting(rows: QuerySet[Any], title: str, url: str, advice: str) -> Waiting:
    count = rows.order_by()[: MOST_COUNTED + 1].count()
    return Waiting(f"{count:,}" if count <= MOST_COUNTED else f"more than {MOST_COUNTED:,}", title, url, advice)


def _midnight(day: date) -> datetime:
    return timezone.make_aware(datetime.combine(day, time.min))


def _place(order: list[str], name: str) -> tuple[int, str]:
    return (order.index(name) if name in order else len(order), name)
