"""Fenced rows written by views and by the admin, which open transactions around what they do."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from leases import hold
from leases.errors import InsideTransaction, NotHeld
from tests.ledger.models import Account, Entry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.leases.test_views")]


def add(request: HttpRequest, account_id: int) -> HttpResponse:
    with hold(f"account:{account_id}"):
        Entry.objects.create(account_id=account_id)
    return HttpResponse("added")


@transaction.non_atomic_requests
def add_outside(request: HttpRequest, account_id: int) -> HttpResponse:
    return add(request, account_id)


class Unleased(admin.ModelAdmin):  # type: ignore[type-arg]  # generic in the stubs only
    """Django's own admin of a fenced model, which takes no lease."""


class Leased(admin.ModelAdmin):  # type: ignore[type-arg]  # generic in the stubs only
    """The same under the lease of the row that is changed, taken before Django begins its transaction."""

    def changeform_view(self, request: HttpRequest, object_id: str | None = None, *rest: Any, **more: Any) -> Any:
        with hold(Entry.objects.get(pk=object_id).resource()):
            return super().changeform_view(request, object_id, *rest, **more)


unleased, leased = admin.AdminSite("unleased"), admin.AdminSite("leased")
unleased.register(Entry, Unleased)
leased.register(Entry, Leased)

urlpatterns = [
    path("atomic/<int:account_id>", add),
    path("non_atomic/<int:account_id>", add_outside),
    path("unleased/", unleased.urls),
    path("leased/", leased.urls),
]


@pytest.fixture
def atomic_requests() -> Iterator[None]:
    before = connection.settings_dict["ATOMIC_REQUESTS"]
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    yield
    connection.settings_dict["ATOMIC_REQUESTS"] = before


@pytest.fixture
def clerk(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("clerk"))
    return client


@pytest.fixture
def entry(account: Account, resource: str) -> Entry:
    with hold(resource):
        written: Entry = Entry.objects.create(account=account, memo="before")
    return written


def test_view_under_atomic_requests_is_told_to_leave_them(
    account: Account, atomic_requests: None, client: Client
) -> None:
    with pytest.raises(InsideTransaction, match="non_atomic_requests"):
        client.post(f"/atomic/{account.pk}")
    assert not Entry.objects.exists()
    assert client.post(f"/non_atomic/{account.pk}").content == b"added"
    assert Entry.objects.count() == 1


def test_admin_that_takes_no_lease_changes_no_fenced_row(account: Account, entry: Entry, clerk: Client) -> None:
    form = {"account": account.pk, "amount_minor": 1, "memo": "after"}
    with pytest.raises(NotHeld):
        clerk.post(f"/unleased/ledger/entry/{entry.pk}/change/", form)
    with pytest.raises(NotHeld):
        clerk.post(f"/unleased/ledger/entry/{entry.pk}/delete/", {"post": "yes"})
    with pytest.raises(NotHeld):
        clerk.post("/unleased/ledger/entry/add/", form)
    assert list(Entry.objects.values_list("memo", flat=True)) == ["before"]


def test_admin_that_takes_the_lease_first_changes_its_row(account: Account, entry: Entry, clerk: Client) -> None:
    form = {"account": account.pk, "amount_minor": 1, "memo": "after"}
    assert clerk.post(f"/leased/ledger/entry/{entry.pk}/change/", form).status_code == 302
    assert list(Entry.objects.values_list("memo", flat=True)) == ["after"]
