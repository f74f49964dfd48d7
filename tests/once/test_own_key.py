"""A run that is under way is left alone: by a body that asks for its own key, and by who opens the key again."""

import threading
from typing import Any, Literal

import pytest
from django.db import connection, connections

from leases import once, reopen
from leases.jobs.errors import KeyTaken, ReceiptBusy
from leases.models import Receipt

pytestmark = pytest.mark.django_db(transaction=True)
OnCrash = Literal["retry", "park"] | None


@pytest.mark.parametrize("on_crash", [None, "retry", "park"])
def test_body_that_asks_for_its_own_key_takes_effect_once(on_crash: OnCrash) -> None:
    @once("ouroboros:{number}", on_crash=on_crash)
    def job(number: int) -> str:
        effects.append(number)
        if len(effects) < 3:
            assert job(number) is None
        return "done"

    effects: list[int] = []
    assert job(7) == "done"
    assert effects == [7]
    assert job(7) == "done"
    assert Receipt.objects.get().state == Receipt.State.DONE


def test_key_that_another_person_opened_first_is_not_taken_from_the_run_that_began_since() -> None:
    """Both saw it parked; the first one's run is under way when the second one's decision is carried out."""

    @once("charge:{number}", on_crash="park")
    def charge(number: int, fail: bool) -> str:
        if fail:
            raise TimeoutError("no answer")
        started.set()
        assert over.wait(20)
        return "charged"

    def first_person(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if "FOR UPDATE" in sql and not started.is_set():
            run = threading.Thread(target=reopen_and_run)
            run.start()
            runs.append(run)
            assert started.wait(20)
        return execute(sql, params, many, context)

    def reopen_and_run() -> None:
        reopen("charge:1", by="ada", reason="the bank has nothing")
        outcomes.append(charge(1, fail=False))
        connections.close_all()

    started, over = threading.Event(), threading.Event()
    runs: list[threading.Thread] = []
    outcomes: list[Any] = []
    assert charge(1, fail=True) is None
    try:
        with connection.execute_wrapper(first_person), pytest.raises(ReceiptBusy):
            reopen("charge:1", by="bob", reason="the bank has nothing")
    finally:
        over.set()
        runs[0].join(20)
    assert outcomes == ["charged"]
    assert Receipt.objects.get().state == Receipt.State.DONE


@pytest.mark.parametrize("on_crash", [None, "retry", "park"])
def test_body_that_asks_for_its_own_key_by_another_function_is_refused(on_crash: OnCrash) -> None:
    @once("ouroboros:{number}", on_crash=on_crash)
    def other(number: int) -> None:
        pytest.fail("ran")

    @once("ouroboros:{number}", on_crash=on_crash)
    def job(number: int) -> None:
        with pytest.raises(KeyTaken):
            other(number)
        effects.append(number)

    effects: list[Any] = []
    job(7)
    assert effects == [7]
