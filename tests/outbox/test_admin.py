"""The admin of messages: what it shows, at what cost, and who may decide what."""

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection, connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from outbox.inspecting import COUNTED
from outbox.models import Decision, Message
from tests.billing.test_admin_speed import MOST_READ, read_by

pytestmark = pytest.mark.django_db(transaction=True)

Publish = Callable[..., Message]
PAGE = "admin:outbox_message_changelist"


def browser(*codenames: str) -> Client:
    user = User.objects.create_user("clerk", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="outbox", codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


def act(client: Client, action: str, *messages: Message, **more: str) -> Any:
    ids = [str(message.id) for message in messages]
    return client.post(reverse(PAGE), {"action": action, "_selected_action": ids, **more}, follow=True)


def in_doubt(publish: Publish, key: str = "k") -> Message:
    message = publish(key)
    Message.objects.filter(id=message.id).update(state="in_doubt", claim=1, last_error="after the final dot")
    return message


def test_decision_is_asked_for_confirmed_and_written_down(publish: Publish) -> None:
    client = browser("view_message", "decide_message")
    message = in_doubt(publish)
    asked = act(client, "it_arrived", message)
    assert b"count as sent from then on" in asked.content
    assert b"after the final dot" in asked.content
    assert not Decision.objects.exists()
    without_reason = act(client, "it_arrived", message, confirmed="yes", reason="")
    assert b"This field is required" in without_reason.content
    done = act(client, "it_arrived", message, confirmed="yes", reason="in the log")
    assert b"Arrived: 1 of 1." in done.content
    assert Message.objects.get().state == "sent"
    decision = Decision.objects.get()
    assert (decision.by, decision.reason) == ("clerk", "in the log")
    shown = client.get(reverse("admin:outbox_message_change", args=[message.id]))
    assert b"in the log" in shown.content


class ReadsFromReplica:
    """A router as Django's documentation has it: reads go to a server that only reads."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "replica" if model is Message else None

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "default" if model is Message else None


@pytest.fixture
def replica(settings: Any) -> Iterator[None]:
    given = connection.settings_dict
    only_reads = {"options": "-c default_transaction_read_only=on"}
    connections.databases["replica"] = {**given, "OPTIONS": {**given["OPTIONS"], **only_reads}}
    connections["replica"].connect()
    settings.DATABASE_ROUTERS = ["tests.outbox.test_admin.ReadsFromReplica"]
    yield
    connections["replica"].close()
    del connections.databases["replica"], connections["replica"]


def test_decision_is_taken_where_messages_are_written(publish: Publish, replica: None) -> None:
    client = browser("view_message", "decide_message")
    message = in_doubt(publish)
    done = act(client, "it_arrived", message, confirmed="yes", reason="in the log")
    assert b"Arrived: 1 of 1." in done.content
    assert Message.objects.using("default").get().state == "sent"


def test_decision_that_is_refused_does_not_undo_the_others(publish: Publish) -> None:
    client = browser("view_message", "decide_message")
    doubtful, pending = in_doubt(publish), publish("pending")
    asked = act(client, "send_again", doubtful, pending).content.decode()
    meant, left_alone = asked.split("as they are, since their state does not allow it")
    assert ("message k (" in meant, "message pending (" in meant) == (True, False)
    assert ("message k (" in left_alone, "message pending (" in left_alone) == (False, True)
    done = act(client, "send_again", doubtful, pending, confirmed="yes", reason="r")
    assert b"Send again: 1 of 2" in done.content
    assert b"it is pending" in done.content
    assert Decision.objects.get().message_id == doubtful.id


def test_who_may_only_look_can_decide_nothing(publish: Publish) -> None:
    client = browser("view_message")
    message = in_doubt(publish)
    assert b"send_again" not in client.get(reverse(PAGE)).content
    act(client, "send_again", message, confirmed="yes", reason="r")
    assert Message.objects.get().state == "in_doubt"


def test_nobody_writes_a_message_here(publish: Publish) -> None:
    client = browser("view_message", "decide_message")
    message = publish()
    assert client.post(reverse("admin:outbox_message_change", args=[message.id]), {"state": "sent"}).status_code == 403
    assert client.get(reverse("admin:outbox_message_add")).status_code == 403
    assert client.post(reverse("admin:outbox_message_delete", args=[message.id]), {"post": "yes"}).status_code == 403


def test_message_is_shown_with_every_attempt_and_nothing_runs_in_the_browser(publish: Publish) -> None:
    client = browser("view_message")
    message = publish(subject="<script>alert(1)</script>")
    answer = {"attempt": 1, "at": "2026-05-01", "outcome": "refused", "answer": "<b>451</b>", "drainer": "box:1"}
    Message.objects.update(history=[answer])
    page = client.get(reverse("admin:outbox_message_change", args=[message.id])).content.decode()
    assert "&lt;b&gt;451&lt;/b&gt;" in page
    assert "&lt;script&gt;" in page
    assert "<script>alert" not in page


def test_search_finds_by_key_and_by_number(publish: Publish) -> None:
    client = browser("view_message")
    wanted, other = publish("invoice:1"), publish("invoice:2")
    for term in ("invoice:1", f"#{wanted.id}"):
        page = client.get(reverse(PAGE), {"q": term}).content.decode()
        assert f"/{wanted.id}/change/" in page
        assert f"/{other.id}/change/" not in page


def test_search_for_a_number_that_no_message_can_have_finds_nothing(publish: Publish) -> None:
    client = browser("view_message")
    publish()
    for term in ("#" + "9" * 19, "#" + "9" * 5000):
        page = client.get(reverse(PAGE), {"q": term})
        assert page.status_code == 200
        assert b"/change/" not in page.content


def test_list_costs_the_same_however_many_messages_there_are() -> None:
    client = browser("view_message")

    def cost() -> int:
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert client.get(reverse(PAGE)).status_code == 200
        return len(queries)

    def fill(count: int, prefix: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO outbox_message (channel, dedupe_key, digest, payload)"
                " SELECT 'email', %s || n, '', '{}' FROM generate_series(1, %s) AS n",
                [prefix, count],
            )

    fill(1, "a")
    few = cost()
    fill(2 * COUNTED, "b")
    assert cost() == few
    assert f"{COUNTED + 1:,}".replace(",", "") in client.get(reverse(PAGE)).content.decode().replace(",", "")


NARROWED = [
    "",
    "state__exact=pending",
    "state__exact=claimed",
    "state__exact=sent",
    "state__exact=in_doubt",
    "state__exact=cancelled",
    "state__in=in_doubt,dead",
    "created_at__gte={yesterday}",
    "created_at__gte={yesterday}&state__exact=dead",
    "created_at__year={old.year}",
    "created_at__year={old.year}&created_at__month={old.month}",
    "created_at__year={old.year}&created_at__month={old.month}&created_at__day={old.day}",
    "created_at__year={old.year}&created_at__month={old.month}&state__exact=dead",
    "q=k77",
]


def test_list_reads_a_bounded_number_of_rows_however_it_is_narrowed() -> None:
    client = browser("view_message")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO outbox_message (channel, dedupe_key, digest, payload, state, sent_at, created_at)"
            " SELECT 'email', 'k' || n, '', '{}', s, CASE WHEN s = 'sent' THEN now() END,"
            " now() - (100000 - n) * interval '5 minutes'"
            " FROM generate_series(1, 100000) AS n, LATERAL (SELECT CASE n % 30000 WHEN 1 THEN 'cancelled'"
            " WHEN 2 THEN 'in_doubt' WHEN 3 THEN 'dead' WHEN 4 THEN 'pending' ELSE 'sent' END AS s) AS states"
        )
        cursor.execute("VACUUM ANALYZE outbox_message")
    yesterday = (timezone.now() - timedelta(days=1)).strftime("%Y-%m-%d %H:%M:%SZ")
    old = timezone.now() - timedelta(days=200)
    for query in NARROWED:
        with CaptureQueriesContext(connection) as queries:
            assert client.get(f"{reverse(PAGE)}?{query.format(yesterday=yesterday, old=old)}").status_code == 200
        too_much = {sql: rows for sql, rows in read_by(queries).items() if rows > MOST_READ}
        assert not too_much


# The dates above the list


def published_at(publish: Publish, *moments: str) -> list[Message]:
    made = [publish(moment) for moment in moments]
    for message in made:
        Message.objects.filter(id=message.id).update(created_at=message.dedupe_key)
    return made


def drilled(client: Client, **chosen: int) -> tuple[list[str], list[str]]:
    """Return the dates that are offered and the keys that are listed, under the chosen year, month and day."""
    response = client.get(reverse(PAGE), {f"created_at__{kind}": number for kind, number in chosen.items()})
    top = re.search(
        r'<nav class="toplinks"[^>]*>(?:\s*<span.*?</span>)?(.*?)</nav>', response.content.decode(), re.DOTALL
    )
    dates = re.findall(r"(?:<a href[^>]*>)?\s*([\w ]+?)\s*(?:</a>|$)", top[1]) if top else []
    return dates, [message.dedupe_key for message in response.context["cl"].result_list]


def test_dates_lead_from_the_years_to_the_messages_of_a_day(publish: Publish) -> None:
    client = browser("view_message")
    made = published_at(
        publish, "2024-12-31T23:59:59Z", "2025-03-01T00:00:00Z", "2025-03-03T08:00:00Z", "2025-03-03T09:00:00Z",
        "2026-02-01T00:00:00Z",
    )  # fmt: skip
    keys = [message.dedupe_key for message in reversed(made)]
    assert drilled(client) == (["2024", "2025", "2026"], keys)
    years, of_2025 = drilled(client, year=2025)
    assert years == [
        "All dates", "January 2025", "February 2025", "March 2025", "April 2025", "May 2025", "June 2025", "July 2025",
        "August 2025", "September 2025", "October 2025", "November 2025", "December 2025",
    ]  # fmt: skip
    assert of_2025 == keys[1:4]
    days, of_march = drilled(client, year=2025, month=3)
    assert (days[:2], len(days), of_march) == (["2025", "March 1"], 32, keys[1:4])
    assert drilled(client, year=2025, month=3, day=3)[1] == keys[1:3]
    assert drilled(client, year=2025, month=3, day=2)[1] == []
    assert drilled(client, year=2026) == (["All dates", "January 2026", "February 2026"], keys[:1])
    assert drilled(client, year=2031)[1] == []


def test_messages_of_one_year_are_offered_by_month_and_none_at_all_by_nothing(publish: Publish) -> None:
    client = browser("view_message")
    assert drilled(client) == ([], [])
    assert drilled(client, year=2025) == (["All dates"], [])
    published_at(publish, "2025-03-30T00:00:00Z", "2025-05-01T00:00:00Z")
    assert drilled(client)[0] == ["All dates", "March 2025", "April 2025", "May 2025"]


def test_message_of_a_transaction_that_began_before_others_is_found_by_its_own_day(publish: Publish) -> None:
    client = browser("view_message")
    published_at(
        publish, "2025-03-01T10:00:00Z", "2025-03-02T00:01:00Z", "2025-03-01T23:57:00Z", "2025-03-02T00:04:00Z",
        "2025-03-01T23:59:00Z", "2025-03-02T12:00:00Z", "2025-03-03T00:00:01Z", "2025-03-02T23:58:00Z",
    )  # fmt: skip
    for day, count in ((1, 3), (2, 4), (3, 1)):
        listed = drilled(client, year=2025, month=3, day=day)[1]
        assert len(listed) == count
        assert all(key.startswith(f"2025-03-0{day}") for key in listed)
