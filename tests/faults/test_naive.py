"""The safety tests, red: what happens to the incident's worker under the faults that the protected path survives."""

import json
from collections.abc import Callable, Iterator

import pytest
import redis
from django.db import connection

from project.replay.naive import CREATE_TABLE, DROP_TABLE, lock_key
from tests.faults.conftest import MailRecord, Program, Programs
from tests.waiting import wait_until

KEY = lock_key("C1", "2026-05")
ADDRESS = "naive@example.org"
JOB = json.dumps({"customer": "C1", "period": "2026-05", "email": ADDRESS, "net_minor": [100, 250, 399]})
Work = Callable[..., Program]


@pytest.fixture
def work(programs: Programs) -> Iterator[Work]:
    with connection.cursor() as cursor:
        cursor.execute(DROP_TABLE)
        cursor.execute(CREATE_TABLE)

    def start(fault: str = "", ttl_ms: int = 700) -> Program:
        return programs.start("naive", JOB, str(ttl_ms), fault=fault)

    yield start
    with connection.cursor() as cursor:
        cursor.execute(DROP_TABLE)


def invoices() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM naive_invoice")
        return int(cursor.fetchone()[0])


def test_without_faults_the_lock_alone_does_its_work(
    work: Work, mails: MailRecord, redis_client: "redis.Redis"
) -> None:
    first = work("SIGSTOP naive.taxed", ttl_ms=60_000)
    first.reached()
    assert work().end() == {"outcome": "busy"}
    first.wake()
    assert first.end() == {"outcome": "worked"}
    assert (invoices(), mails.to(ADDRESS)) == (1, 1)
    assert not redis_client.exists(KEY)


def test_holder_frozen_past_its_lock_invoices_and_mails_a_second_time(
    work: Work, mails: MailRecord, redis_client: "redis.Redis"
) -> None:
    first = work("SIGSTOP naive.taxed 2")
    first.reached()
    wait_until(lambda: not redis_client.exists(KEY))
    assert work().end() == {"outcome": "worked"}
    first.wake()
    assert first.end() == {"outcome": "worked"}
    assert (invoices(), mails.to(ADDRESS)) == (2, 2)


def test_release_after_expiry_deletes_the_successors_lock_and_lets_a_third_in(
    work: Work, mails: MailRecord, redis_client: "redis.Redis"
) -> None:
    first = work("SIGSTOP naive.taxed")
    first.reached()
    wait_until(lambda: not redis_client.exists(KEY))
    second = work("SIGSTOP naive.saving", ttl_ms=60_000)
    second.reached()
    assert redis_client.exists(KEY)
    first.wake()
    first.end()
    assert not redis_client.exists(KEY), "the first deleted a lock that was the second's"
    assert work().end() == {"outcome": "worked"}
    second.wake()
    second.end()
    assert (invoices(), mails.to(ADDRESS)) == (3, 3)


def test_crash_between_send_and_acknowledge_mails_again(
    work: Work, mails: MailRecord, redis_client: "redis.Redis"
) -> None:
    assert work("SIGKILL naive.mailed").killed()
    wait_until(lambda: not redis_client.exists(KEY))
    work().end()  # the broker gives the unacknowledged message to another worker
    assert (invoices(), mails.to(ADDRESS)) == (2, 2)


def test_crash_between_save_and_send_loses_the_mail(work: Work, mails: MailRecord) -> None:
    assert work("SIGKILL naive.saved").killed()
    assert (invoices(), mails.to(ADDRESS)) == (1, 0)


def test_flushall_lets_a_second_in_while_the_first_works(
    work: Work, mails: MailRecord, redis_client: "redis.Redis"
) -> None:
    first = work("SIGSTOP naive.taxed", ttl_ms=60_000)
    first.reached()
    redis_client.flushall()
    assert work().end() == {"outcome": "worked"}
    first.wake()
    first.end()
    assert (invoices(), mails.to(ADDRESS)) == (2, 2)


def test_message_delivered_again_invoices_again(work: Work, mails: MailRecord) -> None:
    for _ in range(2):
        assert work().end() == {"outcome": "worked"}
    assert (invoices(), mails.to(ADDRESS)) == (2, 2)
