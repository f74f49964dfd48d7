"""A real drainer, killed or frozen while one of its statements is open in the server."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from outbox.drain import Report
from outbox.models import Message, State
from tests.servers.processes import Processes
from tests.waiting import wait_until

from .smtp_server import MailServer
from .test_crashes import MESSAGES, arrivals, connection_parameters, drained, published, start

pytestmark = pytest.mark.django_db(transaction=True)

Publish = Callable[..., Message]
Drain = Callable[..., Report]

HOLD_UP = """
CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_advisory_xact_lock_shared(5); RETURN NEW; END $$;
CREATE TRIGGER hold_up BEFORE UPDATE ON outbox_message FOR EACH ROW WHEN (NEW.state = '{}') EXECUTE FUNCTION hold_up()
"""


@pytest.mark.parametrize(
    ("statement", "state", "in_doubt"),
    # The mark of a message and the intent of the next one are one commit.
    [("claim", "claimed", []), ("mark_and_intend", "sending", ["k0"]), ("mark_and_intend", "sent", ["k1"])],
)
def test_drainer_killed_while_its_statement_has_not_committed(
    statement: str,
    state: str,
    in_doubt: list[str],
    mail_server: MailServer,
    publish: Publish,
    drain: Drain,
    processes: Processes,
    drainer_env: dict[str, str],
) -> None:
    keys = published(publish)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND query LIKE %s"
    with psycopg.connect(**connection_parameters(), autocommit=True) as other:
        try:
            other.execute(HOLD_UP.format(state))
            other.execute("SELECT pg_advisory_lock(5)")
            killed = start(processes, drainer_env)
            wait_until(lambda: other.execute(waiting, [f"-- {statement}:%"]).fetchone() == (1,), 30)
            killed.kill()
            # The server goes on without its client, and commits.
            other.execute("SELECT pg_advisory_unlock(5)")
            wait_until(lambda: other.execute(waiting, ["--%"]).fetchone() == (0,), 10)
            drained(drain)
        finally:
            other.execute("DROP FUNCTION hold_up CASCADE")
    unsent = Message.objects.exclude(state=State.SENT).values_list("dedupe_key", "state")
    assert list(unsent) == [(key, State.IN_DOUBT) for key in in_doubt]
    assert arrivals(mail_server, keys) == Counter(key for key in keys.values() if key not in in_doubt)


@pytest.mark.parametrize(("statement", "state"), [("claim", "claimed"), ("mark_and_intend", "sending")])
def test_drainer_frozen_while_its_statement_has_not_committed_holds_nothing_longer_than_its_claim(
    statement: str,
    state: str,
    mail_server: MailServer,
    publish: Publish,
    drain: Drain,
    processes: Processes,
    drainer_env: dict[str, str],
) -> None:
    # More than the socket takes while nobody reads: the server is stuck in the middle of its answer, before it commits.
    texts = {f"k{number}": str(number) * 2_000_000 for number in range(MESSAGES)}
    messages: list[Any] = [publish(key, text=text) for key, text in texts.items()]
    keys = {message.payload["message_id"]: message.dedupe_key for message in messages}
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = %s AND query LIKE %s"
    with psycopg.connect(**connection_parameters(), autocommit=True) as other:
        frozen = None
        try:
            other.execute(HOLD_UP.format(state))
            other.execute("SELECT pg_advisory_lock(5)")
            frozen = start(processes, drainer_env)
            wait_until(lambda: other.execute(waiting, ["advisory", f"-- {statement}:%"]).fetchone() == (1,), 30)
            frozen.freeze()
            other.execute("SELECT pg_advisory_unlock(5)")
            if statement == "claim":
                wait_until(lambda: other.execute(waiting, ["ClientWrite", "-- claim:%"]).fetchone() == (1,), 10)
            # While its rows are locked, a drainer finds nothing due, and a cancellation waits.
            wait_until(lambda: drain() and not Message.objects.filter(state=State.PENDING).exists(), 20)
            drained(drain)
            in_doubt = list(Message.objects.exclude(state=State.SENT).values_list("dedupe_key", flat=True))
            assert in_doubt == (["k0"] if state == "sending" else [])
            frozen.thaw()
            frozen.wait()
            drained(drain)
        finally:
            if frozen is not None:
                frozen.kill()
            other.execute("DROP FUNCTION hold_up CASCADE")
    assert arrivals(mail_server, keys) == Counter(keys.values())
    assert set(Message.objects.values_list("state", flat=True)) == {State.SENT}
