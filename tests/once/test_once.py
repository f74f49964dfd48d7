"""`once()`: the effect and its receipt commit together, and whoever comes second gets the first one's outcome."""

import functools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from leases import once, reopen
from leases.errors import LeaseError
from leases.jobs import receipt_sql
from leases.jobs.errors import InvalidKey, KeyTaken, OutcomeNotJson, ReceiptBusy, ReceiptMissing
from leases.models import Receipt, Reopening
from tests.jobs.models import Effect
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@once("bonus:{user_id}")
def bonus(user_id: int, result: Any = None, between: Callable[[], None] = lambda: None) -> Any:
    Effect.objects.create(name=f"bonus {user_id}", pid=1)
    between()
    return result


def effects() -> int:
    return Effect.objects.count()


class Running:
    """A call in a thread with a connection of its own, held in its middle until told to go on."""

    def __init__(self, user_id: int, *, fail: bool = False) -> None:
        self.inside = threading.Event()
        self.go_on = threading.Event()
        self.outcome: Any = None
        self.error: BaseException | None = None

        def between() -> None:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                self.backend = cursor.fetchone()[0]
            self.inside.set()
            assert self.go_on.wait(20)
            if fail:
                raise RuntimeError("as told")

        def run() -> None:
            try:
                self.outcome = bonus(user_id, {"by": "first"}, between)
            except BaseException as error:
                self.error = error
            finally:
                connections.close_all()

        self.thread = threading.Thread(target=run)
        self.thread.start()
        assert self.inside.wait(10)

    def end(self) -> None:
        self.go_on.set()
        self.thread.join(10)
        assert not self.thread.is_alive()


def in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    got: list[Any] = []

    def run() -> None:
        try:
            got.append(call())
        except BaseException as error:
            got.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    return thread, got


def somebody_waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return bool(cursor.fetchone()[0])


def test_second_call_returns_the_first_outcome_and_is_counted() -> None:
    assert bonus(1, {"points": [100, "ü"]}) == {"points": [100, "ü"]}
    assert bonus(1, "another") == {"points": [100, "ü"]}
    assert bonus(1) == {"points": [100, "ü"]}
    receipt = Receipt.objects.get()
    assert (receipt.key, receipt.state, receipt.asked_again) == ("bonus:1", "done", 2)
    assert receipt.expires_at is None
    assert effects() == 1
    bonus(2)
    assert effects() == 2


def test_first_run_sends_one_statement_more_than_its_body_and_a_repeat_among_repeats_sends_one() -> None:
    def verbs(user_id: int) -> list[str]:
        with CaptureQueriesContext(connection) as sent:
            bonus(user_id)
        return [query["sql"].split()[0] for query in sent]

    bonus(1)
    assert verbs(2) == ["BEGIN", "SELECT", "INSERT", "COMMIT"]
    assert verbs(1) == ["BEGIN", "SELECT", "ROLLBACK", "UPDATE"]  # a repeat among first runs inserts in vain
    assert verbs(1) == ["UPDATE"]
    assert verbs(3) == ["UPDATE", "BEGIN", "SELECT", "INSERT", "COMMIT"]  # a first run among repeats asks in vain
    assert verbs(4) == ["BEGIN", "SELECT", "INSERT", "COMMIT"]
    assert effects() == 4
    assert Receipt.objects.get(key="bonus:1").asked_again == 2


def test_nothing_returned_is_an_outcome_too() -> None:
    assert bonus(1) is None
    assert bonus(1, "late") is None
    assert effects() == 1


def test_second_waits_for_a_first_that_has_not_committed_and_takes_its_outcome() -> None:
    first = Running(1)  # log 39: six workers that ask "exists?" before they insert
    thread, got = in_thread(lambda: bonus(1, "second"))
    wait_until(somebody_waits_for_a_lock)
    first.end()
    thread.join(10)
    assert got == [{"by": "first"}] == [first.outcome]
    assert effects() == 1


def test_second_runs_when_the_first_rolls_back() -> None:
    first = Running(1, fail=True)
    thread, got = in_thread(lambda: bonus(1, "second"))
    wait_until(somebody_waits_for_a_lock)
    first.end()
    thread.join(10)
    assert isinstance(first.error, RuntimeError)
    assert got == ["second"]
    assert effects() == 1


def test_second_runs_when_the_connection_of_the_first_dies() -> None:
    first = Running(1)
    thread, got = in_thread(lambda: bonus(1, "second"))
    wait_until(somebody_waits_for_a_lock)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [first.backend])
    thread.join(10)
    assert got == ["second"]
    first.end()
    assert first.error is not None
    assert effects() == 1


@override_settings(LEASES_RECEIPT_WAIT=timedelta(milliseconds=200))
def test_second_is_told_when_the_first_takes_too_long() -> None:
    first = Running(1)
    with pytest.raises(ReceiptBusy):
        bonus(1)
    first.end()
    assert bonus(1) == {"by": "first"}
    assert effects() == 1


@override_settings(LEASES_RECEIPT_IDLE=timedelta(milliseconds=300))
def test_frozen_first_gives_way_and_cannot_commit_when_it_wakes() -> None:
    first = Running(1)  # its thread stands still inside the transaction, longer than it may
    thread, got = in_thread(lambda: bonus(1, "second"))
    thread.join(10)
    assert got == ["second"]
    first.end()
    assert first.error is not None
    assert first.outcome is None
    assert effects() == 1
    assert Receipt.objects.get().outcome == "second"


def test_failure_leaves_no_receipt_and_the_next_call_runs() -> None:
    def fail() -> None:
        raise IntegrityError("as told")

    with pytest.raises(IntegrityError):
        bonus(1, None, fail)
    assert not Receipt.objects.exists()
    assert effects() == 0
    assert bonus(1, "retried") == "retried"


def test_another_function_with_the_same_key_is_refused_loudly() -> None:
    @once("bonus:{user_id}")
    def other(user_id: int) -> None:
        Effect.objects.create(name="other", pid=1)

    bonus(1)
    with pytest.raises(KeyTaken, match=r"bonus:1.*bonus"):
        other(1)
    assert effects() == 1
    assert Receipt.objects.get().asked_again == 0


def test_moved_function_keeps_its_receipts_by_its_old_name() -> None:
    bonus(1, "here")
    old_name = Receipt.objects.get().actor

    @once("bonus:{user_id}", name=old_name)
    def moved(user_id: int) -> None:
        pytest.fail("ran again")

    assert moved(1) == "here"


@pytest.mark.parametrize("outcome", [{1, 2}, object(), float("nan"), "nul\x00", b"bytes"])
def test_outcome_that_cannot_be_kept_rolls_the_effect_back(outcome: Any) -> None:
    with pytest.raises(OutcomeNotJson):
        bonus(1, outcome)
    assert effects() == 0
    assert not Receipt.objects.exists()


def test_inside_a_transaction_effect_and_receipt_share_its_fate() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        bonus(1, "gone")
        1 / 0  # noqa: B018
    assert (effects(), Receipt.objects.count()) == (0, 0)
    with transaction.atomic():
        assert bonus(1, "kept") == "kept"
        assert bonus(1) == "kept"
    assert (effects(), Receipt.objects.get().asked_again) == (1, 1)


def test_asking_again_inside_a_long_transaction_holds_nobody_up() -> None:
    bonus(1, "first")
    with transaction.atomic():
        assert bonus(1) == "first"
        thread, got = in_thread(lambda: bonus(1))
        thread.join(5)
        assert got == ["first"]
    assert Receipt.objects.get().asked_again == 2


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_stricter_isolation_starts_over_and_finds_the_receipt(level: str) -> None:
    def strictly() -> Any:
        with connection.cursor() as cursor:
            cursor.execute(f"SET default_transaction_isolation = '{level}'")
        return bonus(1, "second")

    first = Running(1)
    thread, got = in_thread(strictly)
    wait_until(somebody_waits_for_a_lock)
    first.end()
    thread.join(10)
    assert got == [{"by": "first"}]
    assert effects() == 1


def test_lock_timeout_of_the_caller_is_back_inside_the_body() -> None:
    seen: list[str] = []

    def look() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SHOW lock_timeout")
            seen.append(cursor.fetchone()[0])

    bonus(1, None, look)
    assert seen == ["0"]


def test_retention_is_written_on_the_receipt() -> None:
    @once("report:{day}", retention=timedelta(days=30))
    def report(day: str) -> None: ...

    report("2026-05-01")
    receipt = Receipt.objects.get()
    assert receipt.expires_at is not None
    assert receipt.expires_at - receipt.ran_at == pytest.approx(timedelta(days=30), abs=timedelta(seconds=5))


def test_key_opened_again_runs_once_more_and_the_record_says_who_and_why() -> None:
    bonus(1, "first")
    bonus(1)
    reopen("bonus:1", by="ada", reason="the first bonus was taken back")
    assert bonus(1, "second") == "second"
    assert bonus(1) == "second"
    assert effects() == 2
    record = Reopening.objects.get()
    assert (record.key, record.by, record.outcome, record.asked_again) == ("bonus:1", "ada", "first", 1)
    with pytest.raises(ReceiptMissing):
        reopen("bonus:2", by="ada", reason="never ran")
    with pytest.raises(ValueError, match="reason"):
        reopen("bonus:1", by="ada", reason=" ")


def test_different_arguments_never_share_a_key() -> None:
    # outbox B56, D19
    @once("mail:{a}:{b}")
    def mail(a: str, b: str) -> None:
        Effect.objects.create(name="mail", pid=1)

    for a, b in [("x:y", "z"), ("x", "y:z"), ("x%3Ay", "z"), ("", "x"), ("x", "")]:
        mail(a, b)
    assert effects() == 5
    assert mail.once.key.of("x", b="y") == "mail:x:y"  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [None, "x" * 300, "nul\x00", "\ud800"])
def test_arguments_that_give_no_usable_key_are_refused(value: Any) -> None:
    with pytest.raises(InvalidKey) as caught:
        bonus(value)
    assert isinstance(caught.value, LeaseError)
    assert effects() == 0


def test_mistakes_in_the_decorator_show_when_the_module_is_imported() -> None:
    # outbox D16
    with pytest.raises(ValueError, match="no parameter"):
        once("x:{nobody}")(lambda user_id: None)
    with pytest.raises(ValueError, match="separator"):
        once("x:{a}{b}")(lambda a, b: None)
    with pytest.raises(ValueError, match="on_crash"):
        once("x:{a}", on_crash="hope")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="retention"):
        once("x:{a}", retention=timedelta(0))

    with pytest.raises(TypeError, match=r'write @once\("\.\.\."\)'):
        once(lambda user_id: None)  # type: ignore[arg-type]

    async def coroutine(a: int) -> None: ...

    with pytest.raises(TypeError, match="coroutine"):
        once("x:{a}")(coroutine)


@pytest.mark.parametrize("on_crash", ["retry", "park"])
def test_outcome_that_postgresql_cannot_keep_does_not_run_the_effect_again(on_crash: Any) -> None:
    ran: list[int] = []

    @once("request:{number}", on_crash=on_crash)
    def job(number: int) -> str:
        ran.append(number)
        return "named in Latin-1: \udce9"

    thread, _ = in_thread(lambda: job(1))
    thread.join(10)
    assert not thread.is_alive()
    job(1)
    assert ran == [1]
    assert Receipt.objects.get().state == Receipt.State.DONE


def test_outcome_with_half_a_surrogate_pair_is_refused_by_name() -> None:
    with pytest.raises(OutcomeNotJson):
        bonus(1, {"file": "\udce9"})
    assert bonus(1, {"file": "\N{PILE OF POO}"}) == {"file": "\N{PILE OF POO}"}
    assert effects() == 1


def test_receipt_that_is_done_never_goes_back_to_started() -> None:
    # outbox C73
    """A second message was about to start when the first run ended: what it says about the key comes too late."""
    start = functools.partial(receipt_sql.start, message_id="", retention=None, using="default")
    finish = functools.partial(receipt_sql.finish, outcome="7", reason="", using="default")
    assert start("outside:1", "outside", token=1, may_repeat=True) == ("started", 1)
    assert finish("outside:1", token=1, state="done")
    bonus(1)
    before = list(Receipt.objects.order_by("id").values())
    for receipt in before:
        for may_repeat in (True, False):
            assert start(receipt["key"], receipt["actor"], token=2, may_repeat=may_repeat) is None
        for token in (1, 2):
            assert not finish(receipt["key"], token=token, state="parked")
    assert [receipt["state"] for receipt in before] == ["done", "done"]
    assert list(Receipt.objects.order_by("id").values()) == before
