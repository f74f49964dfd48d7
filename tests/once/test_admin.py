"""The admin of jobs: what it shows, at what cost, and who may act."""

from typing import Any

import dramatiq
import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from leases.jobs import dead_letters, workload
from leases.models import DeadLetter, Receipt, Reopening
from tests.jobs import actors
from tests.jobs.actors import QUEUE
from tests.once.conftest import Jobs
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
PAGES = ["receipt", "reopening", "deadletter", "slot", "queue"]


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


def kill(name: str) -> DeadLetter:
    message: Any = dramatiq.MessageProxy(actors.welcome.message(name))
    message.stuff_exception(RuntimeError("<b>as told</b>"))
    dead_letters.record(message, dramatiq.get_broker())
    return DeadLetter.objects.get(key=f"welcome:{name}")


@pytest.mark.parametrize("name", PAGES)
def test_every_page_opens_for_whom_it_may(client: Client, name: str) -> None:
    assert client.get(page(name)).status_code == 200
    assert clerk().get(page(name)).status_code == 403


@pytest.mark.parametrize("name", ["receipt", "deadletter"])
def test_page_costs_the_same_with_many_rows(client: Client, name: str) -> None:
    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            client.get(page(name))
        return len(captured)

    actors.welcome("one")
    kill("one-dead")
    few = queries()
    for number in range(30):
        actors.welcome(f"{number}")
        kill(f"{number}-dead")
    assert queries() == few


def test_receipt_shows_first_run_outcome_and_how_often_it_was_asked_again(client: Client) -> None:
    actors.welcome("ada")
    actors.welcome("ada")
    receipt = Receipt.objects.get()
    text = client.get(reverse("admin:leases_receipt_change", args=[receipt.pk])).content.decode()
    assert "welcome:ada" in text
    assert "pid" in text
    assert client.get(page("receipt") + "?q=welcome:a").content.decode().count("welcome:ada")


def test_opening_a_key_again_is_asked_permissioned_and_kept(client: Client) -> None:
    actors.welcome("ada")
    post = {"action": "reopen_selected", "_selected_action": [Receipt.objects.get().pk]}
    assert "Open keys again" in client.post(page("receipt"), post).content.decode()
    assert Receipt.objects.exists()
    client.post(page("receipt"), {**post, "confirmed": "yes", "reason": ""})
    assert Receipt.objects.exists()
    clerk("view_receipt").post(page("receipt"), {**post, "confirmed": "yes", "reason": "mine"})
    assert Receipt.objects.exists()
    client.post(page("receipt"), {**post, "confirmed": "yes", "reason": "taken back"})
    assert not Receipt.objects.exists()
    assert (Reopening.objects.get().by, Reopening.objects.get().reason) == ("root", "taken back")


def test_replay_is_asked_permissioned_guarded_and_kept_in_the_history(client: Client, redis: Any) -> None:
    post = {"action": "replay_selected", "_selected_action": [kill("ada").pk, kill("bob").pk]}
    assert "Replay" in client.post(page("deadletter"), post).content.decode()
    clerk("view_deadletter").post(page("deadletter"), {**post, "confirmed": "yes"})
    assert not redis.llen(f"dramatiq:{QUEUE}")
    actors.welcome("bob")
    answer = client.post(page("deadletter"), {**post, "confirmed": "yes"}, follow=True).content.decode()
    assert redis.llen(f"dramatiq:{QUEUE}") == 1
    assert "has a receipt" in answer
    client.post(page("deadletter"), {**post, "confirmed": "yes"})
    assert redis.llen(f"dramatiq:{QUEUE}") == 1
    assert LogEntry.objects.filter(change_message__contains="Replayed").count() == 1


def test_errors_of_jobs_are_shown_as_text(client: Client) -> None:
    # outbox D24
    """Arguments and tracebacks were marked as safe, and ran as script in the reader's browser."""
    letter = kill("ada")
    for url in [page("deadletter"), reverse("admin:leases_deadletter_change", args=[letter.pk])]:
        text = client.get(url).content.decode()
        assert "<b>as told</b>" not in text
        assert "&lt;b&gt;as told&lt;/b&gt;" in text


def test_queues_count_all_dead_letters(client: Client) -> None:
    letter = kill("ada")
    fields = {"queue": QUEUE, "actor": "welcome", "died_at": letter.died_at}
    DeadLetter.objects.bulk_create(DeadLetter(message_id=f"{number}", **fields) for number in range(10_001))
    assert ">10002</a>" in client.get(page("queue")).content.decode()


def test_queues_show_depth_age_and_dead_letters_and_what_the_broker_cannot_tell(client: Client, jobs: Jobs) -> None:
    jobs.send(actors.plain, "a")
    kill("ada")
    wait_until(lambda: jobs.state().waiting == 1)
    text = client.get(page("queue")).content.decode()
    assert QUEUE in text
    row = text[text.index(QUEUE) :]
    row = row[: row.index("</tr>")]
    assert "<td>1</td>" in row
    assert ("not known" in row.split("</td>")[3]) == (not jobs.is_redis)  # what workers hold


def test_queues_page_says_that_the_broker_is_away_without_words_of_its_library(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_away() -> None:
        raise ConnectionError("network:ConnectionError")

    monkeypatch.setattr(workload, "measure", is_away)
    text = client.get(page("queue")).content.decode()
    assert "The broker does not answer. Start it" in text
    assert "ConnectionError" not in text
