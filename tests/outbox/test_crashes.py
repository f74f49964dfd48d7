"""A real drainer, killed or frozen at each of its steps. What arrived is counted at the mail server."""

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from django.db import connection
from django.utils import timezone

from outbox.drain import Report
from outbox.models import Message, State
from tests.servers.processes import Processes, RunningProcess
from tests.waiting import wait_until

from .smtp_server import MailServer

pytestmark = pytest.mark.django_db(transaction=True)

Publish = Callable[..., Message]
Drain = Callable[..., Report]
STEPS = ["outbox.claimed", "outbox.intent", "outbox.handed_over", "outbox.marking"]
MESSAGES = 6


def published(publish: Publish) -> dict[str, str]:
    """Publish a few; {Message-ID: dedupe_key}."""
    messages: list[Any] = [publish(f"k{number}") for number in range(MESSAGES)]
    return {message.payload["message_id"]: message.dedupe_key for message in messages}


def arrivals(server: MailServer, keys: dict[str, str]) -> Counter[str]:
    return Counter(keys[envelope.message_id] for envelope in server.received)


def start(processes: Processes, env: dict[str, str], **more: str) -> RunningProcess:
    options = ["--until-empty", "--concurrency", "1", "--batch-size", "50"]
    return processes.start("drain_outbox", *options, env={**env, **more})


def struck(process: RunningProcess, marker: Path, statuses: set[str]) -> None:
    """Wait until the process reached its step and the signal has struck."""

    def status() -> str:
        try:
            return str(psutil.Process(process.pid).status())
        except psutil.NoSuchProcess:
            return "gone"

    wait_until(marker.exists, 30, f"the step was not reached:\n{process.output()}")
    wait_until(lambda: status() in statuses, 10)


def drained(drain: Drain) -> None:
    """Let a second drainer go on until nobody holds anything and nothing waits."""

    def settled() -> bool:
        drain()
        return not Message.objects.filter(state__in=[State.PENDING, State.CLAIMED, State.SENDING]).exists()

    wait_until(settled, 30)


@pytest.mark.parametrize("step", STEPS)
def test_drainer_killed_at_a_step_sends_nothing_twice_and_loses_nothing(
    step: str,
    mail_server: MailServer,
    publish: Publish,
    drain: Drain,
    processes: Processes,
    drainer_env: dict[str, str],
    tmp_path: Path,
) -> None:
    # outbox A5, A7, A9, A13, A14, A27
    keys = published(publish)
    nth = "1" if step == "outbox.claimed" else "3"
    killed = start(processes, drainer_env, FAULT_STEP=step, FAULT_NTH=nth)
    struck(killed, tmp_path / "marker", {"zombie", "gone"})
    killed.wait()
    drained(drain)
    arrived = arrivals(mail_server, keys)
    states = dict(Message.objects.values_list("dedupe_key", "state"))
    in_doubt = [key for key, state in states.items() if state == State.IN_DOUBT]
    assert set(states.values()) <= {State.SENT, State.IN_DOUBT}
    # At most the one in hand is in doubt; every other one is marked and arrived, and none arrived twice.
    assert len(in_doubt) == (0 if step == "outbox.claimed" else 1)
    expected = Counter(keys.values())
    if step == "outbox.intent":
        del expected[in_doubt[0]]
    assert arrived == expected


@pytest.mark.parametrize("nth", [3, MESSAGES])
def test_drainer_killed_after_a_mark_leaves_at_most_the_next_one_in_doubt(
    nth: int,
    mail_server: MailServer,
    publish: Publish,
    drain: Drain,
    processes: Processes,
    drainer_env: dict[str, str],
    tmp_path: Path,
) -> None:
    keys = published(publish)
    killed = start(processes, drainer_env, FAULT_STEP="outbox.marked", FAULT_NTH=str(nth))
    struck(killed, tmp_path / "marker", {"zombie", "gone"})
    killed.wait()
    drained(drain)
    # The intent of the next one is in the same commit, and it was not begun.
    in_doubt = Message.objects.exclude(state=State.SENT).values_list("dedupe_key", "state")
    assert list(in_doubt) == ([] if nth == MESSAGES else [(f"k{nth}", State.IN_DOUBT)])
    assert arrivals(mail_server, keys) == Counter(key for key in keys.values() if key != f"k{nth}")


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_drainer_struck_while_the_server_has_the_mail_and_has_not_said_so(
    how: str,
    mail_server: MailServer,
    publish: Publish,
    drain: Drain,
    processes: Processes,
    drainer_env: dict[str, str],
) -> None:
    keys = published(publish)
    mail_server.mode, mail_server.delay = "slow", 2.0
    struck_one = start(processes, drainer_env)
    wait_until(lambda: len(mail_server.received) == 1, 30)
    struck_one.kill() if how == "SIGKILL" else struck_one.freeze()
    mail_server.mode = "accept"
    drained(drain)
    assert Message.objects.get(state=State.IN_DOUBT).dedupe_key == "k0"
    assert arrivals(mail_server, keys) == Counter(keys.values())
    if how == "SIGSTOP":
        struck_one.thaw()
        assert struck_one.wait() in (0, 3), struck_one.output()
        drained(drain)
        # It reads the server's answer late, or meets its own deadline first: a proof, or none. Nothing is sent again.
        assert set(Message.objects.values_list("state", flat=True)) <= {State.SENT, State.IN_DOUBT}
        assert arrivals(mail_server, keys) == Counter(keys.values())


@pytest.mark.parametrize(
    ("how", "step", "times"),
    [("send-then-mark", "outbox.handed_over", 2), ("mark-then-send", "outbox.marked", 0)],
)
def test_naive_drainer_killed_in_between_sends_twice_or_loses(
    how: str,
    step: str,
    times: int,
    mail_server: MailServer,
    publish: Publish,
    processes: Processes,
    drainer_env: dict[str, str],
    tmp_path: Path,
) -> None:
    keys = published(publish)
    killed = processes.start_python("-m", "tests.outbox.naive", how, env={**drainer_env, "FAULT_STEP": step})
    struck(killed, tmp_path / "marker", {"zombie", "gone"})
    killed.wait()
    again = processes.start_python("-m", "tests.outbox.naive", how, env=drainer_env)
    assert again.wait() == 0
    arrived = arrivals(mail_server, keys)
    assert arrived["k0"] == times
    assert set(Message.objects.values_list("state", flat=True)) == {State.SENT}


@pytest.mark.parametrize("step", STEPS)
def test_drainer_frozen_past_its_claim_then_woken_sends_nothing_twice_and_loses_nothing(
    step: str,
    mail_server: MailServer,
    publish: Publish,
    drain: Drain,
    processes: Processes,
    drainer_env: dict[str, str],
    tmp_path: Path,
) -> None:
    # outbox A36
    # outbox A26, A37: the claim is longer than the freeze is not
    keys = published(publish)
    frozen = start(processes, drainer_env, FAULT_STEP=step, FAULT_SIGNAL="SIGSTOP")
    struck(frozen, tmp_path / "marker", {"stopped"})
    drained(drain)
    in_doubt = Message.objects.filter(state=State.IN_DOUBT).count()
    assert in_doubt == (0 if step == "outbox.claimed" else 1)
    frozen.thaw()
    assert frozen.wait() == 0, frozen.output()
    drained(drain)
    # The proof of the drainer that really handed over counts, however late; so does that it had not begun.
    assert set(Message.objects.values_list("state", flat=True)) == {State.SENT}
    assert arrivals(mail_server, keys) == Counter(keys.values())


@pytest.mark.parametrize("step", STEPS[1:])
def test_drainer_frozen_until_a_person_sent_again_changes_nothing_when_it_wakes(
    step: str,
    mail_server: MailServer,
    publish: Publish,
    drain: Drain,
    processes: Processes,
    drainer_env: dict[str, str],
    tmp_path: Path,
) -> None:
    keys = published(publish)
    frozen = start(processes, drainer_env, FAULT_STEP=step, FAULT_SIGNAL="SIGSTOP")
    struck(frozen, tmp_path / "marker", {"stopped"})
    drained(drain)
    decided = Message.objects.get(state=State.IN_DOUBT)
    before = arrivals(mail_server, keys)[decided.dedupe_key]
    Message.objects.filter(id=decided.id).update(state=State.PENDING, available_at=timezone.now())
    drained(drain)
    resent = Message.objects.get(id=decided.id)
    assert resent.state == State.SENT
    assert resent.claim is not None
    assert decided.claim is not None
    assert resent.claim > decided.claim
    frozen.thaw()
    assert frozen.wait() == 0, frozen.output()
    arrived = arrivals(mail_server, keys)
    assert arrived[decided.dedupe_key] == before + 1  # what the person asked for, and no more
    del arrived[decided.dedupe_key]
    assert set(arrived.values()) == {1}
    after = Message.objects.get(id=decided.id)
    assert (after.state, after.claim, after.sent_at) == (State.SENT, resent.claim, resent.sent_at)


def test_sigterm_finishes_the_message_in_hand_and_gives_the_rest_back(
    mail_server: MailServer,
    publish: Publish,
    drain: Drain,
    processes: Processes,
    drainer_env: dict[str, str],
) -> None:
    # outbox A5, A10
    mail_server.mode = "held"
    keys = published(publish)
    process = start(processes, drainer_env | {"EMAIL_TIMEOUT": "90"}, OUTBOX_TEST_CLAIM_SECONDS="200")
    wait_until(lambda: len(mail_server.received) == 1, 30)
    process.terminate()
    untouched = Message.objects.filter(state=State.PENDING, attempts=0, claimed_until=None)
    wait_until(lambda: untouched.count() == MESSAGES - 1, message="the rest waits for the one in hand")
    assert Message.objects.filter(state=State.SENDING, attempts=1).count() == 1
    mail_server.goes_on.set()
    assert process.wait() == 0, process.output()
    assert Message.objects.filter(state=State.SENT, attempts=1).count() == 1
    assert len(mail_server.received) == 1
    drained(drain)
    assert arrivals(mail_server, keys) == Counter(keys.values())
    assert set(Message.objects.values_list("attempts", flat=True)) == {1}


def test_sigterm_gives_back_what_a_micro_batch_has_not_begun(
    mail_server: MailServer,
    publish: Publish,
    drain: Drain,
    processes: Processes,
    drainer_env: dict[str, str],
) -> None:
    # outbox A20
    mail_server.mode, mail_server.delay = "slow", 0.5
    keys = published(publish)
    options = ["--watch", "--concurrency", "1", "--micro-batch", str(MESSAGES)]
    process = processes.start("drain_outbox", *options, env={**drainer_env, "OUTBOX_TEST_CLAIM_SECONDS": "60"})
    wait_until(lambda: len(mail_server.received) == 1, 30)
    assert Message.objects.filter(state=State.SENDING).count() == MESSAGES
    process.terminate()
    assert process.wait() == 0, process.output()
    assert Message.objects.filter(state=State.PENDING, attempts=0).count() == MESSAGES - 1
    drained(drain)
    assert arrivals(mail_server, keys) == Counter(keys.values())


def test_second_signal_ends_at_once_and_leaves_the_one_in_hand_in_doubt(
    mail_server: MailServer,
    publish: Publish,
    drain: Drain,
    processes: Processes,
    drainer_env: dict[str, str],
) -> None:
    mail_server.mode, mail_server.delay = "slow", 20.0
    keys = published(publish)
    process = start(processes, drainer_env | {"EMAIL_TIMEOUT": "30"}, OUTBOX_TEST_CLAIM_SECONDS="3")
    wait_until(lambda: len(mail_server.received) == 1, 30)
    process.terminate()
    wait_until(lambda: Message.objects.filter(state=State.PENDING).count() == MESSAGES - 1)
    process.interrupt()
    assert process.wait(10) == 128 + signal.SIGINT  # the mail would take 20 s
    mail_server.mode = "accept"
    drained(drain)
    assert arrivals(mail_server, keys) == Counter(keys.values())
    assert Message.objects.get(state=State.IN_DOUBT).dedupe_key == "k0"


def test_connection_cut_at_any_step_sends_nothing_twice_and_loses_nothing(
    mail_server: MailServer, publish: Publish, drain: Drain, on_event: Callable[..., None]
) -> None:
    # outbox A28
    # outbox A13, A19: the database is gone between 250 and the mark; that is no failed send
    keys = published(publish)

    cuts = []

    def cut() -> None:
        pid = connection.connection.info.backend_pid
        with psycopg.connect(**connection_parameters(), autocommit=True) as other:
            cuts.append(other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid]).fetchone())

    # The fourth marking is the first one after the cut at the second intent was noticed and mended.
    for step, nth in {"outbox.claimed": 1, "outbox.intent": 2, "outbox.marking": 4, "outbox.marked": 4}.items():
        on_event(step, cut, nth)
    drained(drain)
    assert cuts == [(True,)] * 4
    assert arrivals(mail_server, keys) == Counter(keys.values())
    assert set(Message.objects.values_list("state", "attempts")) == {(State.SENT, 1)}


def connection_parameters() -> dict[str, Any]:
    given = connection.get_connection_params()
    return {name: given[name] for name in ("host", "port", "user", "password", "dbname") if given.get(name)}
