"""What a job that runs once returns: the first caller and those who come second get the same, or a named error."""

from typing import Any

import pytest

from leases import once
from leases.jobs.errors import OutcomeNotJson
from leases.models import Receipt

pytestmark = pytest.mark.django_db(transaction=True)


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("as told")


@once("in:{number}")
def inside(number: int, outcome: Any) -> Any:
    return outcome


@once("out:{number}", on_crash="park")
def outside(number: int, outcome: Any) -> Any:
    return outcome


@pytest.mark.parametrize("job", [inside, outside])
@pytest.mark.parametrize(
    ("outcome", "kept"), [((1, 2), [1, 2]), ({1: [()]}, {"1": [[]]}), ("\\u0000", "\\u0000"), ("\\\\", "\\\\"), (0, 0)]
)
def test_first_caller_gets_what_whoever_comes_second_gets(job: Any, outcome: Any, kept: Any) -> None:
    assert job(1, outcome) == kept
    assert job(1, "another") == kept


@pytest.mark.parametrize(
    "outcome",
    ["\0", "\\\0", {"\0": 1}, 10**5000, [Unspeakable()]],
    ids=["nul", "after-backslash", "key", "huge", "repr"],
)
def test_outcome_that_cannot_be_kept_has_a_named_error(outcome: Any) -> None:
    with pytest.raises(OutcomeNotJson, match="in:1"):
        inside(1, outcome)
    assert not Receipt.objects.exists()
    assert outside(1, outcome) is None
    assert Receipt.objects.get().state == Receipt.State.DONE
