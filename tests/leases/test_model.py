"""A model check: any interleaving of owners, lost memories, failovers and clocks that run ahead.

Two oracles: tokens strictly increase per resource, and accepted writes never interleave by token. The same machine over
a lock without a fence is shown to find the interleaving, so the oracles can fail.
"""

from datetime import timedelta
from typing import Any, ClassVar

import pytest
from django.db import connection, transaction
from django_redis import get_redis_connection
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from leases import fence, redis_store
from leases.acquiring import _acquire_once
from leases.errors import LeaseBusy, LeaseLost, StaleToken
from leases.lease import Lease
from leases.presenting import presenting
from leases.process import ProcessIdentity
from leases.resources import key_of
from leases.stopping import Job

pytestmark = pytest.mark.django_db(transaction=True)

ACCOUNT = 1
RESOURCE = f"account:{ACCOUNT}"
OWNERS = st.sampled_from(["Ada", "Bob", "Cy"])
HOUR_US = 3_600_000_000
INSERT = "INSERT INTO ledger_entry (account_id, amount_minor, memo, token) VALUES (%s, 0, '', %s)"


class Leases(RuleBasedStateMachine):
    """Owners take, lose and return one resource, and write under whatever they believe they hold."""

    fenced: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.redis = get_redis_connection("leases")
        self.redis.flushdb()
        with connection.cursor() as cursor:
            cursor.execute(
                "TRUNCATE ledger_entry, ledger_plain, ledger_account, leases_fence, leases_leaserecord, leases_incident"
            )
            cursor.execute("INSERT INTO ledger_account (id, name) VALUES (%s, '')", [ACCOUNT])
        self.held: dict[str, Lease] = {}
        self.granted: list[int] = []
        self.written: list[int] = []
        self.replica: bytes | None = None

    @rule(owner=OWNERS)
    def acquire(self, owner: str) -> None:
        try:
            lease = _acquire_once(RESOURCE, ttl=timedelta(minutes=10), using="default", job=Job())
        except LeaseBusy:
            return
        assert not self.granted or lease.token > max(self.granted), "a token did not go up"
        self.granted.append(lease.token)
        self.held[owner] = lease

    @rule(owner=OWNERS)
    def write(self, owner: str) -> None:
        lease = self.held.get(owner)
        if lease is None:
            return
        try:
            self._write(lease)
        except (LeaseLost, StaleToken):
            assert lease.token != max(self.granted), "the newest holder was refused"
            return
        self.written.append(lease.token)
        assert self.written == sorted(self.written), "a stale holder wrote after its successor"

    def _write(self, lease: Lease) -> None:
        if self.fenced:
            with presenting([lease], "default"), connection.cursor() as cursor:
                cursor.execute(INSERT, [ACCOUNT, lease.token])

    @rule(owner=OWNERS)
    def release(self, owner: str) -> None:
        lease = self.held.pop(owner, None)
        if lease is not None:
            lease.release()

    @rule(owner=OWNERS)
    def renew(self, owner: str) -> None:
        lease = self.held.get(owner)
        if lease is not None and redis_store.renew([lease.as_renewal()]) == ["absent"]:
            lease._restore()

    @rule()
    def expire(self) -> None:
        self.redis.delete(key_of(RESOURCE))

    @rule()
    def forget_everything(self) -> None:
        self.redis.flushall()

    @rule()
    def replicate(self) -> None:
        self.replica = self.redis.get(key_of(RESOURCE))

    @rule()
    def fail_over_to_a_replica_that_lags(self) -> None:
        self.redis.flushall()
        if self.replica is not None:
            self.redis.set(key_of(RESOURCE), self.replica, px=600_000)

    @rule()
    def hold_with_a_clock_that_is_an_hour_ahead(self) -> None:
        granted = redis_store.acquire(RESOURCE, holder="e" * 32, ttl_ms=1000, floor=self._ahead())
        if isinstance(granted, redis_store.Granted):
            ahead = fence.Registration(RESOURCE, granted.token, "e" * 32, 1000, ProcessIdentity("", 0, ""), "")
            fence.register(ahead, lock_timeout_ms=1000, using="default")
            self.granted.append(granted.token)
            self.redis.delete(key_of(RESOURCE))

    def _ahead(self) -> int:
        return max(self.granted, default=int(self.redis.time()[0]) * 1_000_000) + HOUR_US


class Unfenced(Leases):
    """The same owners with the lock alone: whoever believes to hold it writes."""

    fenced = False

    def _write(self, lease: Lease) -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT 1")


def how(examples: int) -> Any:
    # Derandomized: what is red is red every time, and what is green does not depend on luck.
    return settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


def test_tokens_go_up_and_accepted_writes_never_interleave() -> None:
    run_state_machine_as_test(Leases, settings=how(80))


def test_lock_alone_lets_writes_interleave() -> None:
    with pytest.raises(AssertionError, match="a stale holder wrote after its successor"):
        run_state_machine_as_test(Unfenced, settings=how(500))
