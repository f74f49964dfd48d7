"""The admin of leases: what it shows, at what cost, and who may break what."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.urls import reverse

from leases import hold, keys
from leases.inspecting import COUNTED, SteppingQuerySet
from leases.models import Fence, HeldLease, Incident, Intervention, LeaseRecord
from leases.resources import key_of
from tests.leases.conftest import steal

pytestmark = pytest.mark.django_db(transaction=True)
PAGES = ["heldlease", "leaserecord", "fence", "incident", "intervention"]


@pytest.fixture
def client(transactional_db: None) -> Client:
    browser = Client()
    browser.force_login(User.objects.create_superuser("root"))
    return browser


def clerk(*codenames: str) -> Client:
    """A browser of a member of staff with these permissions only."""
    user = User.objects.create_user("clerk", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="leases", codename__in=codenames))
    browser = Client()
    browser.force_login(user)
    return browser


def page(name: str) -> str:
    return reverse(f"admin:leases_{name}_changelist")


def insert_records(count: int, *, ended: bool) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO leases_leaserecord (resource, token, holder, ttl_ms, host, pid, process_started, thread, "
            "acquired_at, ended_at, \"end\") SELECT 'customer:' || n, n, '', 60000, 'box', 1, '', '', "
            "timestamptz '2026-05-01' + n * interval '1 second', "
            "CASE WHEN %(ended)s THEN timestamptz '2026-05-02' + n * interval '1 second' END, "
            "CASE WHEN %(ended)s THEN 'released' ELSE '' END FROM generate_series(1, %(count)s) AS n",
            {"count": count, "ended": ended},
        )


def one_of_each() -> None:
    with hold("customer:1"):
        pass
    token = steal("customer:2")
    when = datetime(2026, 5, 1, tzinfo=UTC)
    Incident.objects.create(
        resource="customer:2", token=token, detector="watcher", fate="unknown", host="box", pid=1, seen_at=when
    )
    Intervention.objects.create(action="break", resource="customer:2", reason="hangs", by="ada", at=when)


def test_leases_that_have_not_ended_show_the_time_that_redis_says_is_left(client: Client, redis: Any) -> None:
    steal("customer:1", ttl_ms=60_000)
    steal("customer:2")
    redis.delete(key_of("customer:2"))
    steal("customer:3")
    redis.set(key_of("customer:3"), "a" * 32 + ":1", px=5000)
    with hold("customer:4"):
        pass
    response = client.get(page("heldlease"))
    left = {lease.resource: str(lease.live) for lease in response.context["cl"].result_list}
    assert left.keys() == {"customer:1", "customer:2", "customer:3"}
    assert 55 < float(left["customer:1"].removesuffix(" s")) <= 60
    assert left["customer:2"] == "expired"
    assert "taken by another holder" in response.content.decode()


def test_page_costs_one_round_trip_to_redis_and_no_query_per_row(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips: list[int] = []
    read = keys.read

    def counted(resources: Any) -> Any:
        names = list(resources)
        trips.append(len(names))
        return read(names)

    monkeypatch.setattr(keys, "read", counted)
    insert_records(3, ended=False)
    with connection.execute_wrapper(few := Counter()):
        client.get(page("heldlease"))
    LeaseRecord.objects.all().delete()
    insert_records(200, ended=False)
    with connection.execute_wrapper(many := Counter()):
        client.get(page("heldlease"))
    assert many.queries == few.queries
    assert trips == [3, 50]


class Counter:
    """Counts the statements of a connection."""

    def __init__(self) -> None:
        self.queries = 0

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        self.queries += 1
        return execute(sql, params, many, context)


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_for_reading_only(name: str, client: Client) -> None:
    one_of_each()
    assert client.get(page(name)).status_code == 200
    model = apps.get_model("leases", name)
    row = model._default_manager.order_by("pk").last()
    assert row is not None
    shown = client.get(reverse(f"admin:leases_{name}_change", args=[row.pk]))
    assert shown.status_code == 200
    assert 'name="_save"' not in shown.content.decode()
    assert client.get(reverse(f"admin:leases_{name}_add")).status_code == 403
    assert client.post(reverse(f"admin:leases_{name}_delete", args=[row.pk]), {"post": "yes"}).status_code == 403


@pytest.mark.parametrize("name", PAGES)
def test_search_finds_by_the_beginning_of_the_name(name: str, client: Client) -> None:
    one_of_each()
    found = client.get(page(name), {"q": "customer:2"}).context["cl"].result_list
    assert [row.resource for row in found] == ["customer:2"]


@pytest.mark.parametrize("name", ["leaserecord", "fence", "incident"])
def test_search_and_order_use_an_index(name: str) -> None:
    table, order = {
        "leaserecord": ("leases_leaserecord", "acquired_at DESC, id DESC"),
        "fence": ("leases_fence", "resource"),
        "incident": ("leases_incident", "seen_at DESC, id DESC"),
    }[name]
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        try:
            cursor.execute(f"EXPLAIN SELECT * FROM {table} WHERE resource LIKE 'customer:1%%' LIMIT 50", [])
            plan = "\n".join(row[0] for row in cursor.fetchall())
            # Either index serves where the collation is C.
            assert "Index Cond" in plan
            assert "(resource)::text ~>=~" in plan or "(resource)::text >=" in plan
            cursor.execute(f"EXPLAIN SELECT * FROM {table} ORDER BY {order} LIMIT 50")
            assert "Index Scan" in "\n".join(row[0] for row in cursor.fetchall())
        finally:
            cursor.execute("RESET enable_seqscan")


def test_no_page_counts_all_of_many_rows(client: Client) -> None:
    insert_records(COUNTED + 500, ended=True)
    changelist = client.get(page("leaserecord")).context["cl"]
    assert changelist.result_count == COUNTED + 1
    assert len(changelist.result_list) == 50
    last = client.get(page("leaserecord"), {"p": COUNTED // 50}).context["cl"]
    assert len(last.result_list) == 50


def test_pages_go_on_when_redis_does_not_answer(client: Client, settings: Any) -> None:
    steal("customer:1")
    settings.CACHES = {
        **settings.CACHES,
        "nowhere": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"},
    }
    settings.LEASES_REDIS_ALIAS = "nowhere"
    assert "unknown: Redis does not answer" in client.get(page("heldlease")).content.decode()


def select(*leases: HeldLease, **more: str) -> dict[str, Any]:
    return {"action": "break_selected", "_selected_action": [str(lease.pk) for lease in leases], **more}


def test_break_is_confirmed_with_a_reason_and_kept_with_the_user(client: Client, redis: Any) -> None:
    token = steal("customer:1")
    lease = HeldLease.objects.get()
    asked = client.post(page("heldlease"), select(lease))
    assert "can write no more" in asked.content.decode()
    assert Fence.objects.get().token == token
    without = client.post(page("heldlease"), select(lease, confirmed="yes", reason=" "))
    assert "This field is required" in without.content.decode()
    assert Fence.objects.get().token == token
    done = client.post(page("heldlease"), select(lease, confirmed="yes", reason="it hangs"), follow=True)
    assert "Broke the lease on customer:1" in done.content.decode()
    assert Fence.objects.get().token == token + 1
    assert redis.get(key_of("customer:1")) is None
    kept = Intervention.objects.get()
    assert (kept.by, kept.reason, kept.token) == ("root", "it hangs", token)


def test_break_needs_its_own_permission(redis: Any) -> None:
    token = steal("customer:1")
    lease = HeldLease.objects.get()
    browser = clerk("view_heldlease")
    shown = browser.get(page("heldlease"))
    assert shown.status_code == 200
    assert "break_selected" not in shown.content.decode()
    browser.post(page("heldlease"), select(lease, confirmed="yes", reason="it hangs"), follow=True)
    assert Fence.objects.get().token == token
    assert redis.get(key_of("customer:1")) is not None


def test_clerk_with_the_permission_may_break() -> None:
    token = steal("customer:1")
    browser = clerk("view_heldlease", "break_lease")
    browser.post(page("heldlease"), select(HeldLease.objects.get(), confirmed="yes", reason="it hangs"))
    assert Fence.objects.get().token == token + 1


def test_lease_that_changed_hands_between_the_pages_is_not_broken(client: Client) -> None:
    steal("customer:1")
    lease = HeldLease.objects.get()
    client.post(page("heldlease"), select(lease))
    new = steal("customer:1")
    done = client.post(page("heldlease"), select(lease, confirmed="yes", reason="it hangs"), follow=True)
    assert "not leased under token" in done.content.decode()
    assert Fence.objects.get().token == new


def test_lease_that_ended_between_the_pages_is_not_broken(client: Client) -> None:
    with hold("customer:1"):
        ended = HeldLease.objects.get()
    steal("customer:2")
    going_on = HeldLease.objects.get(ended_at=None)
    done = client.post(page("heldlease"), select(ended, going_on, confirmed="yes", reason="it hangs"), follow=True)
    assert "1 had already ended" in done.content.decode()
    assert Intervention.objects.get().resource == "customer:2"


def test_break_works_where_requests_are_atomic(client: Client, redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    token = steal("customer:1")
    client.post(page("heldlease"), select(HeldLease.objects.get(), confirmed="yes", reason="it hangs"))
    assert Fence.objects.get().token == token + 1


def test_headroom_page_says_what_to_do(client: Client) -> None:
    insert_records(10, ended=True)
    LeaseRecord.objects.update(acquired_at=datetime.now(UTC) - timedelta(hours=2))
    LeaseRecord.objects.update(ended_at=datetime.now(UTC))
    assert reverse("admin:leases_headroom") in client.get(page("leaserecord")).content.decode()
    shown = client.get(reverse("admin:leases_headroom")).content.decode()
    assert "Make the ttl of customer leases at least" in shown
    assert clerk("view_fence").get(reverse("admin:leases_headroom")).status_code == 403


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Pacific/Auckland"])
@pytest.mark.parametrize("kind", ["year", "month", "day"])
def test_dates_of_the_hierarchy_are_those_that_django_finds(kind: Any, zone: str, settings: Any) -> None:
    settings.TIME_ZONE = zone
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO leases_leaserecord (resource, token, holder, ttl_ms, host, pid, process_started, thread, "
            "acquired_at, \"end\") SELECT 'c', n, '', 1, '', 1, '', '', "
            "timestamptz '2024-12-28 23:30Z' + n * n * n * interval '7 minutes', '' FROM generate_series(1, 60) AS n"
        )
    stepping = SteppingQuerySet(model=LeaseRecord).datetimes("acquired_at", kind)
    assert stepping == list(LeaseRecord.objects.datetimes("acquired_at", kind))
    assert len(stepping) > 1


def test_hierarchy_leads_from_year_to_day(client: Client) -> None:
    one_of_each()
    assert client.get(page("incident"), {"seen_at__year": 2026, "seen_at__month": 5}).status_code == 200
    shown = client.get(page("incident"), {"seen_at__year": 2026, "seen_at__month": 5, "seen_at__day": 1})
    assert [row.resource for row in shown.context["cl"].result_list] == ["customer:2"]
