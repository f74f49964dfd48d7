from datetime import timedelta

import pytest
from django.db.models.functions import Now
from pytest_django import Settings

from billing import runs
from billing.actors import invoice_customer
from billing.models import Item, Run
from billing.periods import Period
from billing.rescuer import Rescued, rescue
from leases import hold
from tests.billing.conftest import TaxService
from tests.billing.making import make_customer

NOTHING = Rescued(abandoned=0, stalled=0)


@pytest.fixture
def sent(tax: TaxService, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Three open items, enqueued and begun a minute ago; the customers whose messages are sent from now on."""
    settings.BILLING_ABANDONED_AFTER = timedelta(seconds=3)
    settings.BILLING_STALLED_AFTER = timedelta(seconds=30)
    for code in "ABC":
        make_customer(code)
    runs.plan(Period.parse("2026-05"))
    Run.objects.update(created_at=ago(7200))
    Item.objects.update(enqueued_at=ago(70), started_at=ago(60))
    customers: list[int] = []
    monkeypatch.setattr(invoice_customer, "send_with_options", lambda args, **_: customers.append(args[0]))
    return customers


def ago(seconds: float) -> Now:
    return Now() - timedelta(seconds=seconds)  # type: ignore[return-value]  # the stubs do not know that this is an expression


def test_item_that_nobody_finishes_is_enqueued_again_once(sent: list[int]) -> None:
    # outbox B55
    assert rescue() == Rescued(abandoned=3, stalled=0)
    assert sorted(sent) == sorted(Item.objects.values_list("customer", flat=True))
    assert rescue() == NOTHING


def test_item_whose_lease_is_live_is_left_to_its_holder(sent: list[int]) -> None:
    # locks L51 L52
    # outbox B51
    first, *others = Item.objects.order_by("pk").values_list("customer", flat=True)
    with hold(f"customer:{first}"):
        assert rescue() == Rescued(abandoned=2, stalled=0)
    assert sorted(sent) == others
    assert rescue() == Rescued(abandoned=1, stalled=0)


def test_job_that_just_began_is_left_alone(sent: list[int]) -> None:
    Item.objects.update(started_at=ago(1))
    assert rescue() == NOTHING


def test_items_wait_for_their_turn_while_others_begin(sent: list[int]) -> None:
    # billing 8: a long queue must not be made longer
    begun = Item.objects.order_by("pk").first()
    assert begun
    Item.objects.exclude(pk=begun.pk).update(started_at=None, enqueued_at=ago(3600))
    Item.objects.filter(pk=begun.pk).update(started_at=ago(10), attempts=1, enqueued_at=ago(3601), outcome="issued")
    assert rescue() == NOTHING
    Item.objects.filter(pk=begun.pk).update(started_at=ago(31))
    assert rescue() == Rescued(abandoned=0, stalled=2)


def test_item_that_the_queue_has_passed_by_does_not_wait_for_others_to_end(sent: list[int]) -> None:
    # something always begins: the message of the first was lost, and what stood behind it runs
    lost = Item.objects.earliest("pk")
    Item.objects.update(started_at=ago(2), attempts=1, enqueued_at=ago(100))
    Item.objects.filter(pk=lost.pk).update(started_at=None, attempts=0, enqueued_at=ago(120))
    assert rescue() == Rescued(abandoned=0, stalled=1)
    assert sent == [lost.customer_id]


def test_retries_that_begin_all_the_time_starve_nobody(sent: list[int]) -> None:
    waiting = Item.objects.earliest("pk")
    Item.objects.update(started_at=ago(2), attempts=7, enqueued_at=ago(3600))
    Item.objects.filter(pk=waiting.pk).update(started_at=None, attempts=0, enqueued_at=ago(120))
    assert rescue() == Rescued(abandoned=0, stalled=1)
    assert sent == [waiting.customer_id]


def test_stalled_item_waits_a_quarter_of_an_hour_at_most(sent: list[int]) -> None:
    Item.objects.update(started_at=None, rescues=15, enqueued_at=ago(899))
    assert rescue() == NOTHING
    Item.objects.update(enqueued_at=ago(901))
    assert rescue() == Rescued(abandoned=0, stalled=3)


def test_stalled_items_wait_twice_as_long_each_time(sent: list[int]) -> None:
    Item.objects.update(started_at=None)
    assert rescue() == Rescued(abandoned=0, stalled=3)
    Item.objects.update(enqueued_at=ago(59))
    assert rescue() == NOTHING
    Item.objects.update(enqueued_at=ago(61))
    assert rescue() == Rescued(abandoned=0, stalled=3)
    assert set(Item.objects.values_list("rescues", flat=True)) == {2}


def test_item_that_was_never_enqueued_is_found(sent: list[int]) -> None:
    # outbox C65
    # the process that planned the run ended before it told the broker
    Item.objects.update(started_at=None, enqueued_at=None)
    Run.objects.update(created_at=ago(29))
    assert rescue() == NOTHING
    Run.objects.update(created_at=ago(31))
    assert rescue() == Rescued(abandoned=0, stalled=3)


def test_failed_item_is_enqueued_only_when_its_retry_is_long_due(sent: list[int]) -> None:
    Item.objects.update(outcome="failed", concluded_at=ago(50), retry_at=Now() + timedelta(seconds=60))
    assert rescue() == NOTHING
    Item.objects.update(retry_at=ago(31))
    assert rescue() == Rescued(abandoned=0, stalled=3)


def test_second_attempt_that_was_killed_is_abandoned_too(sent: list[int]) -> None:
    Item.objects.update(outcome="failed", concluded_at=ago(65), retry_at=ago(62))
    assert rescue() == Rescued(abandoned=3, stalled=0)


def test_what_is_done_is_never_enqueued_again(sent: list[int]) -> None:
    # outbox B52
    Item.objects.update(outcome="parked", concluded_at=ago(50))
    assert rescue() == NOTHING
