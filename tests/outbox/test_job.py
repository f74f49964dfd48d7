"""The job channel with a real Redis broker: an actor is enqueued if, and only if, the transaction committed."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import dramatiq
import pytest
import redis
from django.db import transaction
from django.utils import timezone
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker

import outbox
from outbox import errors
from outbox.drain import Report
from outbox.models import Message, State
from tests.servers.redis_server import PrivateRedis

pytestmark = pytest.mark.django_db(transaction=True)

Drain = Callable[..., Report]


@pytest.fixture
def server(redis_server: PrivateRedis, settings: Any) -> Iterator[PrivateRedis]:
    settings.OUTBOX_CHANNELS = {"job": {"BACKEND": "outbox.channels.job.JobChannel"}}
    before = dramatiq.get_broker()
    client = redis.Redis.from_url(redis_server.url, socket_timeout=1, socket_connect_timeout=1, retry=None)
    dramatiq.set_broker(RedisBroker(client=client))

    @dramatiq.actor(queue_name="mail")
    def remind(customer_id: int, *, tone: str = "kind") -> None:
        """Never run here: what counts is what arrives in the queue."""

    yield redis_server
    dramatiq.set_broker(before)


def enqueued(server: PrivateRedis) -> list[dict[str, Any]]:
    client = redis.Redis.from_url(server.url)
    try:
        values: Any = client.hvals("dramatiq:mail.msgs")
        return [json.loads(value) for value in values]
    finally:
        client.close()


def publish(key: str = "k", **content: Any) -> Message:
    with transaction.atomic():
        return outbox.publish("job", {"actor": "remind", "args": [42], **content}, dedupe_key=key)


def test_actor_is_enqueued_after_the_commit_only(server: PrivateRedis, drain: Drain) -> None:
    # outbox C76
    with transaction.atomic():
        outbox.publish("job", {"actor": "remind", "args": [41]}, dedupe_key="rolled back")
        transaction.set_rollback(True)
    published: Any = publish(kwargs={"tone": "stern"}, options={"max_retries": 3}).payload
    drain(channel="job")
    (message,) = enqueued(server)
    assert (message["queue_name"], message["actor_name"]) == ("mail", "remind")
    assert (message["args"], message["kwargs"]) == ([42], {"tone": "stern"})
    assert message["options"]["max_retries"] == 3
    assert message["message_id"] == published["message_id"]
    assert Message.objects.get().provider_id == published["message_id"]


def test_broker_that_is_away_costs_no_attempts_and_loses_nothing(server: PrivateRedis, drain: Drain) -> None:
    published: Any = publish().payload
    server.kill()
    drain(channel="job")
    message = Message.objects.get()
    assert (message.state, message.attempts) == (State.PENDING, 0)
    server.restart()
    Message.objects.update(available_at=timezone.now() - timedelta(seconds=1))
    drain(channel="job")
    assert Message.objects.get().state == State.SENT
    assert [message["message_id"] for message in enqueued(server)] == [published["message_id"]]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"actor": "nobody"}, "no actor 'nobody'"),
        ({"args": [1], "actor": "remind", "eta": 1}, "it has the fields"),
        ({"actor": "remind", "args": {"a": 1}}, "args is a list"),
        ({"actor": []}, "actor"),
        ({"actor": "remind", "options": {"delay": 1000}}, "'delay'; .*not_before="),
        ({"actor": "remind", "options": {"eta": 1}}, "'eta'; .*not_before="),
    ],
)
def test_content_that_is_no_job_is_refused(content: dict[str, Any], reason: str, server: PrivateRedis) -> None:
    with pytest.raises(errors.InvalidContent, match=reason), transaction.atomic():
        outbox.publish("job", content, dedupe_key="k")


def test_broker_that_confirms_nothing_is_given_nothing(server: PrivateRedis, drain: Drain) -> None:
    """RabbitMQ may lose what it did not confirm, and Dramatiq does not ask it to unless it is told so."""
    publish()
    before = dramatiq.get_broker()
    dramatiq.set_broker(RabbitmqBroker(url="amqp://127.0.0.1:1"))
    try:
        drain(channel="job")
    finally:
        dramatiq.set_broker(before)
    message = Message.objects.get()
    assert (message.state, message.attempts) == (State.PENDING, 0)
    assert "confirm_delivery=True" in message.last_error
    assert message.resend_until is None  # it is known not to be there


def test_process_without_a_broker_enqueues_nowhere_and_waits(
    server: PrivateRedis, drain: Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dramatiq would make a broker of its own, on this machine, and no worker would ever look there."""
    publish()
    with monkeypatch.context() as patched:
        patched.setattr("dramatiq.broker.global_broker", None)
        drain(channel="job")
        message = Message.objects.get()
        assert (message.state, message.attempts) == (State.PENDING, 0)
        assert "dramatiq.set_broker" in message.last_error
        with pytest.raises(errors.InvalidContent, match="import the module that defines it"):
            publish("another")
        assert dramatiq.broker.global_broker is None
    Message.objects.update(available_at=timezone.now() - timedelta(seconds=1))
    drain(channel="job")
    assert len(enqueued(server)) == 1
