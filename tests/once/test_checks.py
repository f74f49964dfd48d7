"""One test per check of jobs, schedules and brokers."""

from datetime import timedelta
from typing import Any

import dramatiq
import pytest
from django.core.checks import run_checks
from django.test import override_settings
from dramatiq.brokers.stub import StubBroker

from leases import once
from leases.checks import jobs


def found(id_: str) -> list[Any]:
    return [message for message in run_checks() if message.id == id_]


def test_rabbitmq_whose_consumer_timeout_is_below_max_hold() -> None:
    # outbox C68, D17
    """Its default of 30 minutes gives the message of a longer job to another worker, again and again."""
    with override_settings(BROKER_URL="amqp://localhost", BROKER_CONSUMER_TIMEOUT=timedelta(minutes=30)):
        (message,) = found("project.E002")
        assert "consumer_timeout = 4200000" in message.hint
    with override_settings(BROKER_URL="amqp://localhost", BROKER_CONSUMER_TIMEOUT=timedelta(seconds=4200)):
        assert not found("project.E002")
    with override_settings(BROKER_URL="redis://localhost"):
        assert not found("project.E002")


def test_schedule_that_cannot_be_understood() -> None:
    with override_settings(LEASES_SCHEDULE={"nightly": {"actor": "tick", "cron": "every night"}}):
        (message,) = found("leases.E050")
        assert "nightly" in message.msg
    assert not found("leases.E050")


def test_scheduled_actor_that_is_not_once() -> None:
    with override_settings(LEASES_SCHEDULE={"nightly": {"actor": "plain", "cron": "0 3 * * *"}}):
        assert len(found("leases.W051")) == 1
    assert not found("leases.W051")


def test_once_actor_on_a_broker_without_current_message(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = StubBroker(middleware=[])
    monkeypatch.setattr("dramatiq.broker.global_broker", broker)
    assert not jobs.once_actors()

    @dramatiq.actor(broker=broker)
    @once("job:{number}")
    def job(number: int) -> None: ...

    assert [message.id for message in jobs.once_actors()] == ["leases.E052"]
    broker.add_middleware(dramatiq.middleware.CurrentMessage())
    assert not jobs.once_actors()
