"""A channel of a project's own that does something odd: its message has a fate, and no neighbour suffers."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

import outbox
from outbox.claims import Statements
from outbox.drain import Report, Until
from outbox.models import Message, State
from outbox.sweeping import Sweeper
from tests.waiting import wait_until

from .conftest import drainer
from .odd_channels import Hangs, TakesItsTime

pytestmark = pytest.mark.django_db(transaction=True)

Drain = Callable[..., Report]


@pytest.fixture(autouse=True)
def _configured(settings: Any) -> None:
    configure(settings, "OddChannel")


def configure(settings: Any, name: str) -> None:
    settings.OUTBOX_CHANNELS = {"odd": {"BACKEND": f"tests.outbox.odd_channels.{name}"}}


def publish(key: str, answer: str = "yes", **content: Any) -> None:
    with transaction.atomic():
        outbox.publish("odd", {"answer": answer, **content}, dedupe_key=key)


def states() -> dict[str, str]:
    return dict(Message.objects.values_list("dedupe_key", "state"))


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize(
    ("answer", "fate"),
    [
        ("none", State.IN_DOUBT),
        ("number", State.SENT),
        ("list", State.SENDING),  # cannot be written; the sweep puts it in doubt
        ("error", State.PENDING),
        ("ages", State.SENDING),
        ("lost", State.IN_DOUBT),
    ],
)
def test_odd_answer_has_its_fate_and_no_neighbour_suffers(
    answer: str, fate: str, concurrency: int, drain: Drain
) -> None:
    for number in range(3):
        publish(f"before {number}")
    publish("odd", answer)
    for number in range(3):
        publish(f"after {number}")
    drain(channel="odd", concurrency=concurrency)
    found = states()
    assert found.pop("odd") == fate
    assert set(found.values()) == {State.SENT}


def test_words_of_an_odd_answer_are_kept(drain: Drain) -> None:
    publish("number", "number")
    publish("none", "none")
    publish("error", "error")
    drain(channel="odd")
    assert Message.objects.get(dedupe_key="number").provider_id == "4711"
    assert "None, not an Answer" in Message.objects.get(dedupe_key="none").last_error
    assert Message.objects.get(dedupe_key="error").last_error == "boom"


def test_doubt_about_a_receiver_that_was_away_is_an_attempt_with_a_history(drain: Drain) -> None:
    publish("lost", "lost")
    drain(channel="odd")
    message: Any = Message.objects.get()
    assert (message.state, message.attempts) == (State.IN_DOUBT, 1)
    assert message.history[0]["answer"] == "silence after the request"


def test_channel_that_cannot_be_made_in_a_thread_costs_no_attempt_and_stops_nobody(drain: Drain, settings: Any) -> None:
    configure(settings, "LoginFails")
    for number in range(3):
        publish(f"k{number}")
    drain(channel="odd")
    assert set(Message.objects.values_list("state", "attempts")) == {(State.PENDING, 0)}
    assert "login failed" in Message.objects.first().last_error  # type: ignore[union-attr]
    configure(settings, "OddChannel")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE outbox_message SET available_at = clock_timestamp()")
    drain(channel="odd")
    assert set(states().values()) == {State.SENT}


def test_message_whose_host_cannot_be_said_is_sent_all_the_same_and_stops_nobody(drain: Drain, settings: Any) -> None:
    configure(settings, "HostFails")
    publish("good", host="h")
    publish("missing")
    publish("none", host=None)
    publish("unhashable", host=[])
    publish("last", host="h")
    drain(channel="odd")
    assert set(states().values()) == {State.SENT}


def test_next_batch_is_claimed_first_so_that_its_intent_takes_the_marks_along(
    drain: Drain, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "outbox")
    publish("first")
    publish("second")
    drain(channel="odd", batch_size=1)
    assert set(states().values()) == {State.SENT}
    events = [event.removeprefix("outbox.") for record in caplog.records if (event := getattr(record, "event", ""))]
    first = ["claimed", "intent", "handed_over"]
    assert events == [*first, "claimed", "marking", "marked", "intent", "handed_over", "marking", "marked"]


def test_message_that_is_due_again_at_once_is_found_by_the_claim_after_its_batch(drain: Drain, settings: Any) -> None:
    configure(settings, "BusyAtFirst")
    settings.OUTBOX_RETRY_BASE = timedelta(0)
    publish("first")
    drain(channel="odd", batch_size=1)
    assert states() == {"first": State.SENT}


def test_proof_that_came_after_its_claim_ran_out_is_marked_before_the_next_claim_takes_its_message(
    drain: Drain, on_event: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the new claim's number the proof would change nothing, and what has arrived would be sent again."""

    def send_again() -> None:
        wait_until(lambda: Statements("default").sweep([]))  # as another drainer does
        assert states() == {"k": State.IN_DOUBT}
        Message.objects.update(state=State.PENDING)  # as a person decides
        connection.close()

    monkeypatch.setattr(Sweeper, "wait", lambda sweeper: 60.0)
    on_event("outbox.handed_over", send_again)
    publish("k")
    tally = drain(channel="odd", batch_size=1, claim_ttl=1).tally
    assert (tally["claimed"], tally["sent"], tally["too_late"]) == (1, 1, 0)
    assert list(Message.objects.values_list("state", "attempts")) == [(State.SENT, 1)]


def test_failure_of_the_loop_is_raised_after_what_is_in_hand_was_marked() -> None:
    def fail(tally: Counter[str]) -> None:
        if tally["claimed"]:
            raise RuntimeError("the loop fails")

    for number in range(4):
        publish(f"k{number}")
    with pytest.raises(RuntimeError, match="the loop fails"):
        drainer(channel="odd", batch_size=4, until=Until.STOPPED, progress=fail).run()
    # One thread had one message in hand; the others were given back.
    assert Counter(states().values()) == {State.SENT: 1, State.PENDING: 3}


def test_no_send_of_a_micro_batch_begins_that_may_go_on_beyond_its_claim(drain: Drain, settings: Any) -> None:
    """Swept meanwhile, it could be sent again by a person while it is on its way."""
    configure(settings, "TakesItsTime")
    TakesItsTime.left.clear()
    publish("first")
    publish("second")
    drain(channel="odd", micro_batch=2, claim_ttl=1.6)  # of which 0.8 s are needed for one
    assert states() == {"first": State.SENT, "second": State.SENT}
    assert len(TakesItsTime.left) == 2
    assert min(TakesItsTime.left) > 0.75, TakesItsTime.left


@pytest.fixture
def hanging(settings: Any) -> Iterator[None]:
    configure(settings, "Hangs")
    yield
    Hangs.goes_on.set()
    wait_until(lambda: not any(thread.name.startswith("outbox-sender") for thread in threading.enumerate()))


def test_send_that_hangs_beyond_its_claim_makes_no_progress_and_the_drainer_can_be_stopped(hanging: None) -> None:
    progressed: list[int] = []
    publish("k")
    busy = drainer(
        channel="odd", until=Until.STOPPED, claim_ttl=2, progress=lambda tally: progressed.append(tally["claimed"])
    )

    def run() -> None:
        busy.run()
        connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: states() == {"k": State.IN_DOUBT})  # swept by itself
    seen = len(progressed)
    busy.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert len(progressed) == seen
