"""`send_once()`: a saving, never the guarantee."""

from datetime import timedelta
from typing import Any

import dramatiq
import pytest
from django.test import override_settings

from leases import once, reopen, send_once, send_once_with_options
from leases.jobs.errors import KeyTaken
from tests.jobs import actors

pytestmark = pytest.mark.django_db(transaction=True)


def queued() -> int:
    broker: Any = dramatiq.get_broker()
    return int(broker.do_qsize(actors.QUEUE))


def test_pending_key_is_not_enqueued_again_and_others_are() -> None:
    # outbox C72
    assert send_once(actors.welcome, "ada") is not None
    assert send_once(actors.welcome, name="ada") is None
    assert send_once(actors.welcome, "bob") is not None
    assert queued() == 2


def test_done_key_is_not_enqueued_until_it_is_opened_again() -> None:
    actors.welcome("ada")
    assert send_once(actors.welcome, "ada") is None
    assert queued() == 0
    reopen("welcome:ada", by="ada", reason="once more")
    assert send_once(actors.welcome, "ada") is not None


@override_settings(LEASES_PENDING_TTL=timedelta(milliseconds=50))
def test_key_whose_message_was_lost_can_be_enqueued_when_the_mark_expires(redis: Any) -> None:
    # outbox B50
    """A lock of a job that exists nowhere must not keep it from being enqueued for ever."""
    from tests.waiting import wait_until

    send_once(actors.welcome, "ada")
    redis.delete(f"dramatiq:{actors.QUEUE}", f"dramatiq:{actors.QUEUE}.msgs")  # the broker lost it
    wait_until(lambda: send_once(actors.welcome, "ada"))
    assert queued() == 1


def test_delayed_job_stays_pending_for_as_long_as_it_is_delayed(redis: Any) -> None:
    send_once_with_options(actors.welcome, args=("ada",), delay=timedelta(hours=2))
    assert redis.pttl("pending:welcome:ada") > 2 * 3600 * 1000
    assert redis.llen(f"dramatiq:{actors.QUEUE}.DQ") == 1


def test_redis_away_costs_the_saving_and_not_the_job(redis_server: Any, settings: Any, processes: Any) -> None:
    redis_server.kill()
    code = (
        "import django; django.setup()\n"
        "from leases import send_once\nfrom tests.jobs.actors import welcome\n"
        "print('sent', send_once(welcome, 'ada') is not None)"
    )
    process = processes.start_python("-c", code, env={"LEASES_REDIS_URL": redis_server.url})
    process.wait_for_line("sent True", 60)


def test_enqueue_that_fails_leaves_no_mark(redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("as told")

    monkeypatch.setattr(actors.welcome.broker, "enqueue", fail)
    with pytest.raises(ConnectionError):
        send_once(actors.welcome, "ada")
    assert not redis.exists("pending:welcome:ada")


def test_second_actor_that_shares_a_key_is_refused_and_not_silently_left_out() -> None:
    @once("welcome:{name}", name="another")
    def another(name: str) -> None: ...

    actor = dramatiq.actor(queue_name=actors.QUEUE, actor_name="another")(another)
    try:
        send_once(actors.welcome, "ada")
        assert send_once(actor, "ada") is not None  # a worker is to decide, and to say so
        actors.welcome("ada")
        with pytest.raises(KeyTaken, match=r"another asked.*welcome"):
            send_once(actor, "ada")
    finally:
        del actor.broker.actors["another"]
    assert queued() == 2


def test_actor_that_is_not_once_is_refused() -> None:
    with pytest.raises(TypeError, match="plain is not @once"):
        send_once(actors.plain, "ada")
    with pytest.raises(TypeError, match=r"put @dramatiq\.actor above"):
        send_once(actors.welcome.fn, "ada")  # type: ignore[arg-type]
