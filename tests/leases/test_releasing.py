"""Giving a lease back: out of turn, inside a transaction, and after it was lost."""

from collections.abc import Generator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from leases import hold
from leases.errors import LeaseLost
from leases.models import Incident, LeaseRecord
from leases.resources import key_of
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_generator_that_is_closed_in_a_transaction_gives_its_lease_back_although_that_is_rolled_back(
    redis: Any,
) -> None:
    def rows() -> Generator[int]:
        with hold("customer:1"):
            yield 1

    held = rows()
    next(held)
    with transaction.atomic(), connection.cursor() as cursor:
        held.close()
        cursor.execute("SHOW synchronous_commit")
        assert cursor.fetchone() == ("on",)
        transaction.set_rollback(True)
    wait_until(lambda: LeaseRecord.objects.get().end == LeaseRecord.End.RELEASED)
    wait_until(lambda: not redis.exists(key_of("customer:1")))
    assert not Incident.objects.exists()


def test_lease_that_its_body_gave_back_counts_as_lost_for_what_follows() -> None:
    with pytest.raises(LeaseLost, match="released"), hold("customer:1") as lease:
        lease.release()
        with pytest.raises(LeaseLost):
            lease.check()


@pytest.mark.parametrize("lock_delay", [timedelta(0), timedelta(seconds=5)])
def test_lock_delay_outlasts_the_end_of_a_holder_that_lost_its_lease(
    lock_delay: timedelta, settings: Any, redis: Any
) -> None:
    settings.LEASES_LOCK_DELAY = lock_delay
    with pytest.raises(LeaseLost), hold("customer:1") as lease:
        lease.lose(Incident.Detector.DEADLINE_PASSED)
    assert redis.exists(key_of("customer:1")) == bool(lock_delay)
