"""A body that leaves its transaction to be rolled back without raising: no effect, so no receipt, and not done."""

from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, connection, connections, transaction
from django.db.transaction import TransactionManagementError

from leases import once
from leases.errors import LeaseError
from leases.jobs.errors import EffectRolledBack, TransactionEnded
from leases.models import Receipt
from tests.jobs.models import Effect

NAME = attrgetter("__name__")
pytestmark = pytest.mark.django_db(transaction=True)


def taken() -> None:
    Effect.objects.create(pk=Effect.objects.latest("pk").pk, name="the same row", pid=1)


def swallows_an_error() -> None:
    with suppress(IntegrityError):
        taken()


def swallows_an_error_of_sql() -> None:
    with suppress(DatabaseError), connection.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


def closes_the_connections() -> None:
    connections.close_all()


def sets_rollback() -> None:
    transaction.set_rollback(True)


def swallows_an_error_within_a_savepoint() -> None:
    with suppress(IntegrityError), transaction.atomic():
        taken()


@once("undone:{number}")
def job(number: int, undo: Callable[[], None], outcome: Any = None) -> Any:
    Effect.objects.create(name=f"{number}", pid=1)
    undo()
    return outcome


@pytest.mark.parametrize("outcome", [None, 7])
@pytest.mark.parametrize(
    "undo",
    [swallows_an_error, swallows_an_error_of_sql, closes_the_connections, sets_rollback],
    ids=lambda f: f.__name__,
)
def test_body_whose_transaction_cannot_commit_is_told_and_the_next_call_runs(
    undo: Callable[[], None], outcome: Any
) -> None:
    with pytest.raises(EffectRolledBack, match="undone:1") as caught:
        job(1, undo, outcome)
    assert isinstance(caught.value, LeaseError)
    assert not Effect.objects.exists()
    assert not Receipt.objects.exists()
    assert job(1, lambda: None, "retried") == "retried"
    assert Effect.objects.count() == 1


@pytest.mark.parametrize("undo", [swallows_an_error, swallows_an_error_of_sql, sets_rollback], ids=NAME)
def test_body_inside_a_transaction_of_its_caller_is_told_and_the_caller_can_go_on(undo: Callable[[], None]) -> None:
    with transaction.atomic():
        Effect.objects.create(name="of the caller", pid=1)
        with pytest.raises(EffectRolledBack):
            job(1, undo)
    assert [effect.name for effect in Effect.objects.all()] == ["of the caller"]
    assert not Receipt.objects.exists()


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("statement", ["ROLLBACK", "/* at the end */ commit", "SELECT 1; END"])
def test_body_that_ends_its_transaction_by_sql_is_stopped_there(statement: str, goes_on: bool) -> None:
    """The next statement would begin another transaction: an effect without a receipt, or a receipt without it."""

    def end() -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)

    def undo() -> None:
        if goes_on:
            with suppress(LeaseError):
                end()
        else:
            end()
        Effect.objects.create(name="beyond the receipt", pid=1)

    with pytest.raises(TransactionManagementError if goes_on else TransactionEnded):
        job(1, undo)
    assert not Effect.objects.filter(name="beyond the receipt").exists()
    assert Effect.objects.count() == Receipt.objects.count() == (0 if statement == "ROLLBACK" else 1)


def test_body_that_undoes_to_a_savepoint_of_its_own_is_done() -> None:
    assert job(1, swallows_an_error_within_a_savepoint, 7) == 7
    assert Effect.objects.count() == 1
    assert Receipt.objects.get().outcome == 7
