"""A body that asks for the key of its own run: that one is under way, and nothing more runs."""

from typing import Any, Literal

import pytest

from leases import once
from leases.jobs.errors import KeyTaken
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
