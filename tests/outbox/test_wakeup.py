"""A drainer that waits is woken by a commit, and misses nothing when it is not."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

import outbox
from outbox import sweeping
from outbox.drain import Drainer, Until
from outbox.lane import Pace
from outbox.models import Message, State
from tests.waiting import wait_until

from . import conftest
from .smtp_server import MailServer

pytestmark = pytest.mark.django_db(transaction=True)

Publish = Callable[..., Message]
MAIL = {"to": "a@example.org", "subject": "s", "text": "t"}


@pytest.fixture
def waiting(mail_server: MailServer) -> Iterator[Drainer]:
    """A drainer that listens, and by itself would look once in ten minutes."""
    pace = Pace(100, None, 1, timedelta(minutes=20), timedelta(minutes=10))
    drainer = Drainer(using="default", names=["email"], pace=pace, until=Until.STOPPED, listen=True)

    def run() -> None:
        drainer.run()
        connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(listening)
    yield drainer
    drainer.stop()
    thread.join(20)
    assert not thread.is_alive()


def listening() -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE query = 'LISTEN outbox' AND datname = current_database()"
        )
        return [row[0] for row in cursor.fetchall()]


def test_commit_wakes_a_waiting_drainer(waiting: Drainer, mail_server: MailServer, publish: Publish) -> None:
    publish()
    wait_until(lambda: mail_server.received)


def test_burst_of_commits_leaves_nobody_waiting(waiting: Drainer, mail_server: MailServer, publish: Publish) -> None:
    # Wake-ups within a tenth of a second are merged; the last one must not be lost.
    for number in range(30):
        publish(f"k{number}")
        time.sleep(0.011)
    wait_until(lambda: len(mail_server.received) == 30)


def test_rolled_back_publish_wakes_nobody(waiting: Drainer, mail_server: MailServer) -> None:
    with connection.cursor() as cursor:
        cursor.execute("LISTEN outbox")
    with transaction.atomic():
        outbox.publish("email", MAIL, dedupe_key="k")
        transaction.set_rollback(True)
    raw: Any = connection.connection
    assert list(raw.notifies(timeout=0.3)) == []


def test_listener_that_lost_its_connection_comes_back(
    waiting: Drainer, mail_server: MailServer, publish: Publish
) -> None:
    (pid,) = listening()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    publish("while nobody listened")
    wait_until(lambda: [other for other in listening() if other != pid])
    wait_until(lambda: mail_server.received)


def test_without_notify_a_drainer_finds_it_by_polling(mail_server: MailServer, publish: Publish, settings: Any) -> None:
    settings.OUTBOX_NOTIFY = False
    pace = Pace(100, None, 1, timedelta(minutes=1), timedelta(milliseconds=100))
    drainer = Drainer(using="default", names=["email"], pace=pace, until=Until.STOPPED)

    def run() -> None:
        drainer.run()
        connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        publish()
        wait_until(lambda: mail_server.received)
    finally:
        drainer.stop()
        thread.join(20)


def test_send_that_hangs_does_not_keep_new_messages_waiting(
    mail_server: MailServer, publish: Publish, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without notifications, and with no sweep before the test is over, only the poll interval finds the second one.
    monkeypatch.setattr(sweeping, "MOST_SECONDS_BETWEEN", 3600.0)
    settings.EMAIL_TIMEOUT = 60
    mail_server.mode = "hang_after_dot"
    publish("hangs")
    running = conftest.drainer(until=Until.STOPPED, concurrency=2, claim_ttl=3600.0)

    def run() -> None:
        running.run()
        connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: len(mail_server.received) == 1, 20)
        wait_until(lambda: running._lanes[0].empty, 10)
        mail_server.mode = "accept"
        publish("next")
        wait_until(lambda: Message.objects.get(dedupe_key="next").state == State.SENT, 20)
        assert Message.objects.get(dedupe_key="hangs").state == State.SENDING
    finally:
        running.stop()
        for connected in mail_server.connections:
            connected.shutdown(socket.SHUT_RDWR)
        thread.join(20)
