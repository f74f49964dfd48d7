"""Causes and overlaps, on histories written out by hand; the lease lasts 3 s."""

import pytest

from project.replay.timeline import Cause, Timeline, build

TTL_S = 3.0


def history(*lines: str) -> Timeline:
    """Return the timeline of lines like `1.5 w2 naive.locked`, all about one customer; a worker's pid is its number."""
    return build(
        {"at": float(at), "worker": int(worker[1:]), "pid": int(worker[1:]), "event": event, "customer": "7"}
        for at, worker, event in (line.split() for line in lines)
    )


def test_second_invoice_after_expiry_is_put_down_to_the_lock_that_expired() -> None:
    timeline = history(
        "0 w1 naive.locked", "3.1 w2 naive.locked", "4 w2 naive.saved", "4 w2 naive.unlocked",
        "5 w1 naive.saved", "5 w1 naive.unlocked",
    )  # fmt: skip
    assert timeline.causes(TTL_S) == {"7": [Cause.EXPIRED]}
    assert timeline.expired_under_holder(TTL_S, renews=False) == 1


def test_third_invoice_is_put_down_to_the_former_holder_who_deleted_the_lock() -> None:
    timeline = history(
        "0 w1 naive.locked", "3.1 w2 naive.locked", "4 w1 naive.saved", "4 w1 naive.unlocked",
        "4.2 w3 naive.locked",  # the second one's lock would have lasted until 6.1
        "5 w3 naive.saved", "5 w3 naive.unlocked", "6 w2 naive.saved", "6 w2 naive.unlocked",
    )  # fmt: skip
    assert timeline.causes(TTL_S) == {"7": [Cause.EXPIRED, Cause.FOREIGN]}


def test_invoice_after_everybody_was_done_is_put_down_to_the_message() -> None:
    timeline = history(
        "0 w1 naive.locked", "1 w1 naive.saved", "1 w1 naive.unlocked",
        "2 w2 naive.locked", "3 w2 naive.saved", "3 w2 naive.unlocked",
    )  # fmt: skip
    assert timeline.causes(TTL_S) == {"7": [Cause.DOUBLED]}
    assert not list(timeline.overlaps())


def test_killed_holder_does_not_run_on() -> None:
    timeline = history(
        "0 w1 naive.locked", "1 w1 killed", "3.1 w2 naive.locked", "4 w2 naive.saved", "4 w2 naive.unlocked"
    )
    assert timeline.causes(TTL_S) == {}
    assert timeline.expired_under_holder(TTL_S, renews=False) == 0


def test_overtaken_holder_that_issued_nothing_was_refused() -> None:
    timeline = history(
        "0 w1 lease.registered", "0.5 w1 frozen",
        "3.6 w2 lease.registered", "4 w2 invoice.issued", "4 w2 lease.released",
        "5 w1 thawed", "5.1 w1 lease.lost",
    )  # fmt: skip
    assert timeline.stale_refused() == 1
    assert timeline.expired_under_holder(TTL_S, renews=True) == 1
    assert timeline.causes(TTL_S) == {}
    assert timeline.frozen == [(1, 0.5, 5.0)]
    assert [attempt.end for attempt in timeline.attempts] == [pytest.approx(5.1), pytest.approx(4)]


def test_overtaken_holder_of_a_lock_that_issued_nothing_was_refused_by_nobody() -> None:
    timeline = history(
        "0 w1 naive.locked", "3.1 w2 naive.locked", "4 w2 naive.saved", "4 w2 naive.unlocked", "5 w1 naive.unlocked"
    )
    assert list(timeline.overlaps())
    assert timeline.stale_refused() == 0


def test_lock_that_is_not_renewed_expires_under_whoever_works_for_longer() -> None:
    timeline = history("0 w1 naive.locked", "9 w1 naive.saved", "9 w1 naive.unlocked")
    assert timeline.expired_under_holder(TTL_S, renews=False) == 1
    assert timeline.expired_under_holder(TTL_S, renews=True) == 0
