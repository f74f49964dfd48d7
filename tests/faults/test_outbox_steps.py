"""A drainer that is killed, or frozen past its claim and overtaken, at each step: at most one email, nothing lost."""

import pytest
from django.db import connection, transaction

from outbox import publish
from tests.faults.conftest import PATIENCE, MailRecord, Programs
from tests.waiting import wait_until

ADDRESS = "once@example.org"

# What the world looks like once another drainer has taken over: the message's state, and the mails at the server.
OVERTAKEN = {
    "outbox.claimed": ("sent", 1),
    "outbox.intent": ("in_doubt", 0),  # visible to a person, who alone may decide to send
    "outbox.handed_over": ("in_doubt", 1),
    "outbox.marking": ("in_doubt", 1),
}
# And when one that was only frozen has woken up: it knows what it did, and says so if nobody decided meanwhile.
WOKEN = {
    "outbox.claimed": ("sent", 1),
    "outbox.intent": ("sent", 1),  # it had not begun, gave the message back, and somebody sent it
    "outbox.handed_over": ("sent", 1),
    "outbox.marking": ("sent", 1),
}


@pytest.fixture(autouse=True)
def message(programs: Programs) -> None:
    with transaction.atomic():
        publish("email", {"to": ADDRESS, "subject": "Invoice", "text": "One."}, dedupe_key="one")


def state() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT state FROM outbox_message")
        return str(cursor.fetchone()[0])


def settled(expected: tuple[str, int], mails: MailRecord) -> None:
    wait_until(lambda: state() == expected[0], PATIENCE, f"the message did not become {expected[0]}, but {state()}")
    assert mails.to(ADDRESS) == expected[1]


@pytest.mark.parametrize("step", OVERTAKEN)
def test_drainer_killed_at_a_step_mails_at_most_once_and_loses_nothing(
    programs: Programs, mails: MailRecord, step: str
) -> None:
    assert programs.manage("drain_outbox", "--once", fault=f"SIGKILL {step}").killed()
    programs.manage("drain_outbox", "--watch")
    settled(OVERTAKEN[step], mails)


@pytest.mark.parametrize("step", OVERTAKEN)
def test_drainer_frozen_past_its_claim_and_overtaken_mails_at_most_once_when_it_wakes(
    programs: Programs, mails: MailRecord, step: str
) -> None:
    first = programs.manage("drain_outbox", "--once", fault=f"SIGSTOP {step}")
    first.reached()
    programs.manage("drain_outbox", "--watch")
    settled(OVERTAKEN[step], mails)
    first.wake()
    first.process.wait(PATIENCE)
    settled(WOKEN[step], mails)
