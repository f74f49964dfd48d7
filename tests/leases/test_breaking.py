"""Breaking a lease: the old holder can write no more, the next one can start, and it is on record."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from leases import fence, hold, keys
from leases.breaking import break_lease
from leases.errors import (
    InsideTransaction,
    LeaseCorrupt,
    LeaseLost,
    LeaseUnavailable,
    NotLeased,
    ReasonMissing,
    StaleToken,
)
from leases.models import Fence, Intervention, LeaseRecord
from leases.resources import key_of
from tests.leases.conftest import steal
from tests.leases.threads import in_thread
from tests.ledger.models import Account, Entry
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("every_client")]


def test_broken_holder_cannot_write_and_the_next_can_start(account: Account, resource: str, redis: Any) -> None:
    # locks L49
    with pytest.raises(LeaseLost), hold(resource) as lease:
        broken = break_lease(resource, reason="it hangs", by="ada")
        assert (broken.token, broken.holder, broken.key_deleted) == (lease.token, lease.holder, True)
        assert redis.get(key_of(resource)) is None
        with pytest.raises(StaleToken):
            Entry.objects.create(account=account)
        with in_thread(lambda: _write(resource, account)):
            pass
    assert Entry.objects.count() == 1
    assert LeaseRecord.objects.get(token=lease.token).end == LeaseRecord.End.BROKEN


def _write(resource: str, account: Account) -> None:
    with hold(resource):
        Entry.objects.create(account=account)


def test_break_is_on_record_with_who_and_why() -> None:
    token = steal("customer:1")
    break_lease("customer:1", reason="  its machine is gone ", by="ada")
    kept = Intervention.objects.get()
    assert (kept.action, kept.resource, kept.token) == (Intervention.Action.BREAK, "customer:1", token)
    assert (kept.reason, kept.by) == ("its machine is gone", "ada")
    assert kept.database_role == connection.settings_dict["USER"]


def test_key_deleted_by_hand_alone_would_leave_the_old_holder_writing(
    account: Account, resource: str, redis: Any
) -> None:
    """Why break is not DEL: shown on what everyone else's break-glass does (locks L49)."""
    with hold(resource):
        redis.delete(key_of(resource))
        Entry.objects.create(account=account)
    assert Entry.objects.count() == 1


def test_lease_that_changed_hands_since_it_was_looked_at_is_not_broken() -> None:
    old = steal("customer:1")
    new = steal("customer:1")
    with pytest.raises(NotLeased) as refused:
        break_lease("customer:1", token=old, reason="it hangs", by="ada")
    assert refused.value.current == new
    assert Fence.objects.get().token == new
    assert not Intervention.objects.exists()


def test_resource_that_nobody_leased_cannot_be_broken() -> None:
    with pytest.raises(NotLeased):
        break_lease("customer:1", reason="it hangs", by="ada")


@pytest.mark.parametrize("reason", ["", "  \n"])
def test_break_without_a_reason_changes_nothing(reason: str) -> None:
    token = steal("customer:1")
    with pytest.raises(ReasonMissing):
        break_lease("customer:1", reason=reason, by="ada")
    assert Fence.objects.get().token == token


def test_frozen_holder_whose_key_expired_is_fenced_by_its_record(redis: Any) -> None:
    token = steal("customer:1")
    redis.delete(key_of("customer:1"))
    broken = break_lease("customer:1", reason="it is frozen", by="ada")
    assert (broken.token, broken.key_deleted) == (token, False)
    assert fence.current("customer:1", using="default") == token + 1


@pytest.mark.parametrize("value", [b"AB:5", b"ab:05", b"ab:0", b"ab:1" + b"0" * 18, b"ab:5\n", b"x:5", b"\xff"])
def test_value_that_is_no_lease_to_one_is_none_to_the_other(redis: Any, value: bytes) -> None:
    redis.set(key_of("customer:1"), value)
    with pytest.raises(LeaseCorrupt), hold("customer:1"):
        pass
    with pytest.raises(LeaseCorrupt):
        break_lease("customer:1", reason="looks odd", by="ops")
    assert redis.get(key_of("customer:1")) == value


def test_breaking_twice_is_harmless_and_finishes_what_was_begun(redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from redis.exceptions import ConnectionError as RedisConnectionError

    def unreachable(*args: Any, **kwargs: Any) -> Any:
        raise RedisConnectionError("no route to host")

    token = steal("customer:1")
    with monkeypatch.context() as cut:
        cut.setattr("leases.redis_store.release", unreachable)
        with pytest.raises(LeaseUnavailable, match="its holder is fenced"):
            break_lease("customer:1", reason="it hangs", by="ada")
    assert break_lease("customer:1", reason="it hangs", by="ada").key_deleted
    assert Fence.objects.get().token == token + 1


def test_foreign_value_is_not_broken_but_reported(redis: Any) -> None:
    redis.set(key_of("customer:1"), "not a lease")
    with pytest.raises(LeaseCorrupt):
        break_lease("customer:1", reason="it hangs", by="ada")
    assert redis.get(key_of("customer:1")) == b"not a lease"


def test_holder_frozen_inside_its_transaction_does_not_hold_up_the_break(account: Account, resource: str) -> None:
    presented, broken = threading.Event(), threading.Event()

    def frozen() -> None:
        with pytest.raises(LeaseLost), hold(resource, ttl=timedelta(seconds=6)) as lease:
            try:
                with lease.transaction():
                    Entry.objects.create(account=account)
                    presented.set()
                    assert broken.wait(10)
                    Entry.objects.count()
            except Exception:
                connection.close()
            wait_until(lambda: not lease.is_held, timeout=25)

    with in_thread(frozen, timeout_s=30):
        assert presented.wait(10)
        break_lease(resource, reason="it is frozen", by="ada")
        broken.set()
    assert not Entry.objects.exists()


def test_next_holder_gets_a_higher_token_than_the_raised_fence() -> None:
    # locks L05
    steal("customer:1")
    break_lease("customer:1", reason="it hangs", by="ada")
    raised = Fence.objects.get().token
    with hold("customer:1", wait=timedelta(seconds=2)) as lease:
        assert lease.token > raised


def test_break_inside_a_transaction_is_refused_since_others_would_not_see_the_fence() -> None:
    token = steal("customer:1")
    with pytest.raises(InsideTransaction), transaction.atomic():
        break_lease("customer:1", reason="it hangs", by="ada")
    assert Fence.objects.get().token == token
    assert "customer:1" in keys.read(["customer:1"])
