"""Who stands still in the middle: a server that reads no further, a person's decision that does not commit."""

import socket
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

import outbox
from outbox import decisions
from outbox.channels import cutting
from outbox.channels.base import Answer, Outcome
from outbox.claims import Statements
from outbox.decisions import Action, decide
from outbox.drain import Report
from outbox.models import Decision, Message, State
from tests.waiting import wait_until

from .smtp_server import MailServer

pytestmark = pytest.mark.django_db(transaction=True)

Publish = Callable[..., Message]
Drain = Callable[..., Report]


def test_server_that_reads_on_after_the_message_was_parked_does_not_get_its_final_dot(
    mail_server: MailServer, publish: Publish, drain: Drain
) -> None:
    """The kernel takes text and dot while the server reads nothing, and would deliver them long after a person, who
    was told that nobody is sending any more, sent the message again."""
    mail_server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    mail_server.mode = "stall_in_text"
    publish(text="x" * 50_000)
    drain()
    assert Message.objects.get().state == State.IN_DOUBT
    mail_server.goes_on.set()
    wait_until(lambda: not any("process_request" in thread.name for thread in threading.enumerate()))
    assert mail_server.received == []


def test_mail_for_which_there_is_no_thread_is_known_not_to_be_handed_over(
    mail_server: MailServer, publish: Publish, drain: Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a container's limit is reached, what watches over the conversation cannot be started."""
    start = threading.Thread.start

    def start_but_few(thread: threading.Thread) -> None:
        if thread.name in ("cutter", "look-up"):
            raise RuntimeError("can't start new thread")
        start(thread)

    publish()
    with monkeypatch.context() as patched:
        patched.setattr(cutting, "_alarm", cutting._Alarm())  # whose thread does not run yet
        patched.setattr(threading.Thread, "start", start_but_few)
        drain()
    message = Message.objects.get()
    assert (message.state, message.attempts) == (State.PENDING, 0)


def test_drainer_that_gets_no_thread_to_send_in_gives_everything_back(
    mail_server: MailServer, publish: Publish, drain: Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def start_one(thread: threading.Thread) -> None:
        if thread.name.startswith("outbox-sender") and started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    for number in range(5):
        publish(f"k{number}")
    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="new thread"):
        patched.setattr(threading.Thread, "start", start_one)
        drain(concurrency=3)
    states = Counter(Message.objects.values_list("state", "attempts"))
    assert states in ({(State.PENDING, 0): 5}, {(State.PENDING, 0): 4, (State.SENT, 1): 1})


def test_drainer_does_not_run_inside_a_transaction(mail_server: MailServer, publish: Publish) -> None:
    """What it sends would be rolled back with it, and sent again."""
    publish()
    with pytest.raises(CommandError, match="inside a transaction"), transaction.atomic():
        call_command("drain_outbox", "--until-empty")
    assert not mail_server.received


def test_cancel_that_came_too_late_holds_up_no_drainer_until_its_transaction_ends(publish: Publish) -> None:
    """One that meets an intent just being committed waits for it and changes nothing, yet PostgreSQL keeps the row
    locked for it: the mark would wait for whatever else the caller's transaction does."""
    message: Any = publish()
    held = {"claim": 7, "claimed_until": timezone.now() + timedelta(minutes=1)}
    Message.objects.update(state=State.CLAIMED, **held)
    answers: list[bool] = []
    answered, marked = threading.Event(), threading.Event()

    def cancel_and_go_on() -> None:
        try:
            with transaction.atomic():
                answers.append(outbox.cancel(message.dedupe_key))
                answered.set()
                marked.wait(20)
        finally:
            connection.close()

    cancelling = threading.Thread(target=cancel_and_go_on)
    with transaction.atomic():
        Message.objects.update(state=State.SENDING)  # the intent
        cancelling.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '-- cancel:%'"
        wait_until(lambda: fetched(waiting) == 1)
    try:
        assert answered.wait(10)
        assert answers == [False]
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '2s'")
        Statements("default").mark_and_intend(7, {message.id: Answer(Outcome.ACCEPTED)}, 7, [])
        assert cancelling.is_alive()
    finally:
        marked.set()
        cancelling.join()
        connection.close()
    assert Message.objects.get().state == State.SENT


def fetched(query: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(query)
        return cursor.fetchone()[0]


def test_decision_that_does_not_commit_holds_up_no_drainer(publish: Publish, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that freezes while it decides keeps the message locked, and a drainer that has the proof waits."""
    monkeypatch.setattr(decisions, "MOST_IDLE_MS", 500)
    message: Any = publish()
    Message.objects.update(state=State.IN_DOUBT, claim=7, first_attempt_at=timezone.now())
    decided, marked = threading.Event(), threading.Event()
    failed: list[Exception] = []

    def decide_and_freeze() -> None:
        try:
            with transaction.atomic():
                decide(Action.CANCEL, message.id, reason="r", by="eve")
                decided.set()
                marked.wait(20)
        except DatabaseError as error:
            failed.append(error)
        finally:
            connection.close()

    freezing = threading.Thread(target=decide_and_freeze)
    freezing.start()
    try:
        assert decided.wait(10)
        Statements("default").mark_and_intend(7, {message.id: Answer(Outcome.ACCEPTED)}, 7, [])
        assert freezing.is_alive()  # it was not the mark that waited for the decision
    finally:
        marked.set()
        freezing.join()
    assert failed
    assert Message.objects.get().state == State.SENT
    assert not Decision.objects.exists()
