"""The longer examples in the documents, run as they stand there."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction

from outbox import publish
from outbox.channels.base import Channel
from outbox.drain import Drainer, Until
from outbox.lane import Pace
from outbox.models import Message, State
from tests.docs.reading import document
from tests.outbox.http_server import Receiver
from tests.waiting import wait_until


def example(name: str, containing: str) -> dict[str, Any]:
    """Run the one code block of a document that contains a text; return what it defines."""
    (code,) = (block for block in document(name).blocks("python") if containing in block)
    namespace: dict[str, Any] = {"__name__": __name__}
    exec(compile(code, name, "exec"), namespace)  # noqa: S102  # our own documents
    return namespace


# A channel of one's own

SmsChannel: type[Channel] = example("docs/outbox.md", "class SmsChannel")["SmsChannel"]


@pytest.fixture
def provider(settings: Any) -> Iterator[Receiver]:
    server = Receiver()
    options = {"url": server.url, "token": "secret"}
    settings.OUTBOX_CHANNELS = {"sms": {"BACKEND": f"{__name__}.SmsChannel", "OPTIONS": options}}
    yield server
    server.close()


def drain() -> dict[str, int]:
    pace = Pace(
        batch_size=10,
        micro_batch=None,
        concurrency=1,
        claim_ttl=timedelta(seconds=60),
        poll_interval=timedelta(seconds=1),
    )
    return dict(Drainer(using="default", names=["sms"], pace=pace, until=Until.EMPTY).run().tally)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("mode", "status", "state"),
    [
        ("answer", 202, State.SENT),
        ("answer", 422, State.DEAD),
        ("answer", 503, State.PENDING),
        # The provider recognises the key for a day, so the same message goes to it again.
        ("drop", 202, State.PENDING),
    ],
)
def test_channel_of_the_documents_sends_with_one_key(provider: Receiver, mode: str, status: int, state: State) -> None:
    provider.mode, provider.status = mode, status
    with transaction.atomic():
        publish("sms", {"to": "+49", "text": "Hello"}, dedupe_key="sms:1")
    drain()
    (request,) = provider.received
    assert request.headers["idempotency-key"] == "sms:1"
    assert request.headers["authorization"] == "Bearer secret"
    assert Message.objects.get().state == state


# The recipe for receivers


@pytest.fixture
def received(transactional_db: None) -> Iterator[Any]:
    namespace = example("docs/outbox.md", "class Received")
    with connection.schema_editor() as editor:
        editor.create_model(namespace["Received"])
    yield namespace
    with connection.schema_editor() as editor:
        editor.delete_model(namespace["Received"])


def test_second_delivery_waits_for_the_first_and_has_no_effect(received: dict[str, Any]) -> None:
    effects: list[object] = []
    first_is_inside, let_it_end = threading.Event(), threading.Event()

    def effect(data: object) -> None:
        effects.append(data)
        first_is_inside.set()
        assert let_it_end.wait(10)

    received["print"] = effect
    first = in_thread(lambda: received["receive"]("msg_1", {"n": 1}))
    assert first_is_inside.wait(10)
    second = in_thread(lambda: received["receive"]("msg_1", {"n": 2}))
    wait_until(somebody_waits_for_a_lock, message="the second delivery did not wait")
    let_it_end.set()
    first.join(10)
    second.join(10)
    assert effects == [{"n": 1}]


def in_thread(work: Callable[[], None]) -> threading.Thread:
    def run() -> None:
        try:
            work()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def somebody_waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return bool(cursor.fetchone()[0])


# Threads


@pytest.mark.django_db(transaction=True)
def test_threads_of_the_documents_work_under_the_lease(capsys: pytest.CaptureFixture[str]) -> None:
    example("docs/leases.md", "def work_in_threads")["work_in_threads"]()
    parts = capsys.readouterr().out.splitlines()
    assert sorted(line.split()[0] for line in parts) == ["0", "1", "2", "3"]
    assert len({line.split()[1] for line in parts}) == 1
