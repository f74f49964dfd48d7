"""Many drainers, wrong clocks, late commits: each message goes out once, and none is passed over."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

import outbox
from outbox.claims import Statements
from outbox.drain import Report, Until
from outbox.models import Message, State
from tests.servers.processes import Processes
from tests.waiting import wait_until

from .smtp_server import MailServer
from .test_wakeup import listening

pytestmark = pytest.mark.django_db(transaction=True)

Publish = Callable[..., Message]
Drain = Callable[..., Report]
MINUTE = timedelta(minutes=1)


def fill(count: int, channel: str = "record", prefix: str = "k") -> None:
    """Many messages at once, as publish() would have written them."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO outbox_message (channel, dedupe_key, digest, payload)"
            " SELECT %s, %s || n, '', '{}' FROM generate_series(1, %s) AS n",
            [channel, prefix, count],
        )


def recorded(env: dict[str, str]) -> Counter[str]:
    """How often the receiver got each message."""
    record = Path(env["OUTBOX_TEST_RECORD"])
    return Counter(record.read_text().splitlines()) if record.exists() else Counter()


def test_eight_drainers_hand_over_ten_thousand_messages_exactly_once(
    processes: Processes, drainer_env: dict[str, str]
) -> None:
    # outbox A1, A2, A9
    env = {**drainer_env, "OUTBOX_TEST_CLAIM_SECONDS": "60", "LOG_LEVEL": "WARNING"}
    options = ["drain_outbox", "--watch", "--channel", "record", "--micro-batch", "10", "--json"]
    drainers = [processes.start(*options, env=env) for _ in range(8)]

    wait_until(lambda: len(listening()) == len(drainers), 60)
    fill(10_000)
    wait_until(lambda: not Message.objects.exclude(state=State.SENT).exists(), 60)
    for drainer in drainers:
        drainer.terminate()
    for drainer in drainers:
        assert drainer.wait() == 0, drainer.output()
    assert recorded(env) == Counter(f"k{n}" for n in range(1, 10_001))
    assert set(Message.objects.values_list("state", "attempts")) == {(State.SENT, 1)}
    shares = [drainer.events()[-1].get("sent", 0) for drainer in drainers]
    assert sum(shares) == 10_000
    assert min(shares) > 0, shares


def test_two_naive_drainers_without_a_claim_send_twice() -> None:
    """The naive version: read what is pending, send it, mark it; as a cron job that overlaps itself does."""
    # outbox A1, A11, A12
    fill(50)
    sent: list[str] = []
    both_have_read = threading.Barrier(2)

    def drain() -> None:
        try:
            pending = list(Message.objects.filter(state="pending"))
            both_have_read.wait(10)
            for message in pending:
                sent.append(message.dedupe_key)
                Message.objects.filter(id=message.id).update(state="sent", sent_at=timezone.now())
        finally:
            connection.close()

    threads = [threading.Thread(target=drain) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(sent) == 100


@pytest.mark.parametrize("shift", [600, -600])
def test_drainer_whose_clock_is_wrong_takes_no_live_claim(
    shift: int, processes: Processes, drainer_env: dict[str, str]
) -> None:
    # outbox A37
    fill(40)
    env = {**drainer_env, "OUTBOX_TEST_CLAIM_SECONDS": "30", "OUTBOX_TEST_SEND_SECONDS": "0.1"}
    options = ["drain_outbox", "--until-empty", "--channel", "record", "--concurrency", "1", "--batch-size", "20"]
    right = processes.start(*options, env=env)
    wait_until(lambda: recorded(env), 30)
    wrong = processes.start(*options, env={**env, "OUTBOX_TEST_CLOCK_SECONDS": str(shift)})
    for drainer in (right, wrong):
        assert drainer.wait(60) == 0, drainer.output()
    assert recorded(env) == Counter(f"k{n}" for n in range(1, 41))
    assert set(Message.objects.values_list("state", "attempts")) == {(State.SENT, 1)}


def test_naive_claim_by_the_applications_clock_is_stolen_by_a_clock_that_is_ahead() -> None:
    """The naive version: the claim's end is written and judged by each machine's own clock."""
    fill(1)

    def claim(clock: timedelta) -> int:
        now = timezone.now() + clock
        free = Message.objects.filter(state="pending") | Message.objects.filter(state="claimed", claimed_until__lt=now)
        return free.update(state="claimed", claim=1, claimed_until=now + MINUTE)

    assert claim(timedelta(0)) == 1
    assert claim(timedelta(0)) == 0
    assert claim(10 * MINUTE) == 1


def test_claim_that_a_wrong_database_clock_wrote_far_ahead_is_swept(drain: Drain, settings: Any) -> None:
    fill(1, "email")
    Message.objects.update(state="claimed", claim=1, claimed_until=timezone.now() + timedelta(days=1))
    assert drain().tally["swept"] == 1


def test_message_that_was_swept_into_doubt_is_counted(drain: Drain) -> None:
    fill(1, "email")
    Message.objects.update(state="sending", claim=1, claimed_until=timezone.now() - MINUTE)
    assert drain().tally["in_doubt"] == 1


def test_lower_id_that_commits_late_is_still_sent(mail_server: MailServer, publish: Publish, drain: Drain) -> None:
    # outbox A33
    late = threading.Event()
    inserted = threading.Event()

    def publish_late() -> None:
        with transaction.atomic():
            mail = {"to": "anna@example.org", "subject": "late", "text": "late"}
            outbox.publish("email", mail, dedupe_key="low")
            inserted.set()
            late.wait(20)
        connection.close()

    thread = threading.Thread(target=publish_late)
    thread.start()
    try:
        assert inserted.wait(10)
        high = publish("high")
        drain()
        assert len(mail_server.received) == 1
        high_water_mark = Message.objects.order_by("-id").values_list("id", flat=True)[0]
        assert high_water_mark == high.id
    finally:
        late.set()
        thread.join(10)
    # What a drainer that remembers the highest id it has seen would look at next: nothing.
    assert not Message.objects.filter(id__gt=high_water_mark).exists()
    assert Message.objects.get(dedupe_key="low").id < high.id
    drain()
    assert len(mail_server.received) == 2


def test_claims_side_by_side_never_take_more_than_their_limit_nor_the_same_row() -> None:
    # outbox A34: without statistics a nested loop runs the inner SELECT again
    fill(500)
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM pg_statistic WHERE starelid = 'outbox_message'::regclass")
    taken: list[list[int]] = []

    def claim() -> None:
        statements = Statements("default")
        try:
            while got := statements.claim("record", limit=7, ttl=MINUTE, drainer="t"):
                taken.append([held.id for held in got.held])
        finally:
            connection.close()

    threads = [threading.Thread(target=claim) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert max(map(len, taken)) <= 7
    assert Counter(id for ids in taken for id in ids) == Counter(Message.objects.values_list("id", flat=True))


def test_claim_takes_the_oldest_due_first_and_nothing_before_its_time() -> None:
    fill(3)
    now = timezone.now()
    for key, due in {"k1": now, "k2": now + MINUTE, "k3": now - MINUTE}.items():
        Message.objects.filter(dedupe_key=key).update(available_at=due)
    claim = Statements("default").claim("record", limit=10, ttl=MINUTE, drainer="t")
    assert claim
    assert [held.dedupe_key for held in claim.held] == ["k3", "k1"]


def test_not_before_and_deadline_are_kept(mail_server: MailServer, drain: Drain) -> None:
    mail = {"to": "anna@example.org", "subject": "s", "text": "t"}
    now = timezone.now()
    with transaction.atomic():
        outbox.publish("email", mail, dedupe_key="later", not_before=now + MINUTE)
        outbox.publish("email", mail, dedupe_key="now", not_before=now - MINUTE, deadline=now + MINUTE)
        outbox.publish("email", mail, dedupe_key="too late", deadline=now - MINUTE)
    drain()
    assert dict(Message.objects.values_list("dedupe_key", "state")) == {
        "later": State.PENDING,
        "now": State.SENT,
        "too late": State.DEAD,
    }
    assert len(mail_server.received) == 1
    assert "deadline passed" in Message.objects.get(dedupe_key="too late").last_error


def test_deadline_that_passes_between_claim_and_intent_stops_the_message(
    mail_server: MailServer, publish: Publish, drain: Drain, on_event: Callable[..., None]
) -> None:
    publish()
    past = timezone.now() - MINUTE
    on_event("outbox.claimed", lambda: Message.objects.update(deadline_at=past))
    drain()
    assert not mail_server.received
    message = Message.objects.get()
    assert (message.state, message.attempts) == (State.PENDING, 0)
    drain()
    assert not mail_server.received
    assert Message.objects.get().state == State.DEAD


def test_cancel_that_is_not_committed_yet_holds_nobody_up(
    mail_server: MailServer, publish: Publish, drain: Drain, on_event: Callable[..., None]
) -> None:
    # outbox A25
    for number in range(5):
        publish(f"k{number}")
    cancelled, drained = threading.Event(), threading.Event()

    def cancel_slowly() -> None:
        with transaction.atomic():
            assert outbox.cancel("k2")
            cancelled.set()
            drained.wait(20)
        connection.close()

    thread = threading.Thread(target=cancel_slowly)

    def begin_cancelling() -> None:
        thread.start()
        assert cancelled.wait(10)

    on_event("outbox.claimed", begin_cancelling)
    try:
        drain()
        assert len(mail_server.received) == 4
    finally:
        drained.set()
        thread.join(10)
    assert Message.objects.get(dedupe_key="k2").state == State.CANCELLED
    drain()
    assert len(mail_server.received) == 4


def test_publisher_who_rolls_back_during_the_drain_leaves_nothing(mail_server: MailServer, drain: Drain) -> None:
    with transaction.atomic():
        outbox.publish("email", {"to": "a@example.org", "subject": "s", "text": "t"}, dedupe_key="k")
        seen: list[Report] = []

        def elsewhere() -> None:
            seen.append(drain())
            connection.close()

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(20)
        transaction.set_rollback(True)
    assert seen[0].tally["claimed"] == 0
    assert not mail_server.received
    assert not Message.objects.exists()


def test_channel_nobody_configured_is_left_alone(mail_server: MailServer, publish: Publish, drain: Drain) -> None:
    # outbox B52: an unknown kind is not discarded
    fill(1, "fax")
    publish()
    drain()
    assert Message.objects.get(channel="fax").state == State.PENDING
    assert len(mail_server.received) == 1


def test_once_takes_one_batch_and_limit_is_kept(mail_server: MailServer, publish: Publish, drain: Drain) -> None:
    for number in range(10):
        publish(f"k{number}")
    assert drain(until=Until.ONE_BATCH, batch_size=3).tally["sent"] == 3
    assert drain(limit=4, batch_size=3).tally["sent"] == 4
    assert drain(batch_size=2).tally["sent"] == 3


def test_rate_is_kept_and_everything_goes_out(mail_server: MailServer, publish: Publish, drain: Drain) -> None:
    for number in range(12):
        publish(f"k{number}")
    began = time.monotonic()
    drain(per_second=10, concurrency=4)
    assert time.monotonic() - began >= 1.1  # one at once, eleven at a tenth of a second each
    assert len(mail_server.received) == 12


def test_what_there_is_no_time_left_for_is_given_back_with_its_attempts(
    mail_server: MailServer, publish: Publish, drain: Drain
) -> None:
    for number in range(6):
        publish(f"k{number}")
    mail_server.mode, mail_server.delay = "slow", 0.4
    report = drain(claim_ttl=2.0)
    assert report.tally["given_back"] > 0
    assert len(mail_server.received) == 6
    assert set(Message.objects.values_list("state", "attempts")) == {(State.SENT, 1)}


def test_server_that_holds_the_text_until_the_claim_ran_out_gets_no_final_dot(
    mail_server: MailServer, publish: Publish, drain: Drain, settings: Any
) -> None:
    settings.EMAIL_TIMEOUT = 30
    mail_server.mode, mail_server.delay = "slow_at_data", 1.5
    publish()
    drain(claim_ttl=1.0)
    mail_server.mode = "accept"
    wait_until(lambda: drain().tally["sent"], 10)
    assert len(mail_server.received) == 1


def test_connection_that_a_failover_left_on_a_standby_is_given_up_and_nothing_is_in_doubt(
    mail_server: MailServer, publish: Publish, drain: Drain, on_event: Callable[..., None]
) -> None:
    def become_a_standby() -> None:  # as it looks from a connection that outlived the failover: SQLSTATE 25006
        connection.cursor().execute("SET default_transaction_read_only = on")

    publish()
    on_event("outbox.marking", become_a_standby)
    report = drain()
    assert (report.tally["sent"], report.database_lost) == (1, False)
    assert Message.objects.get().state == State.SENT
    assert len(mail_server.received) == 1


@pytest.mark.parametrize(
    ("mode", "state", "attempts"),
    [
        ("drip_at_connect", State.PENDING, 0),
        ("drip_at_ehlo", State.PENDING, 0),
        ("drip_after_dot", State.IN_DOUBT, 1),
    ],
)
def test_server_whose_reply_never_ends_holds_nobody_longer_than_a_claim(
    mode: str, state: str, attempts: int, mail_server: MailServer, publish: Publish, drain: Drain, settings: Any
) -> None:
    settings.OUTBOX_RETRY_BASE = timedelta(hours=1)
    mail_server.mode = mode
    publish()
    began = time.monotonic()
    drain(claim_ttl=3.0)
    assert time.monotonic() - began < 15
    message = Message.objects.get()
    assert (message.state, message.attempts) == (state, attempts)
