"""What failed for good is kept whatever it carried, and a replay runs what the message asked for or nothing."""

from decimal import Decimal
from typing import Any

import dramatiq
import psycopg
import pytest
from django.db import connection

from leases.jobs import DeadLetters, dead_letters, worker_dead_letters
from leases.jobs.brokers import rabbitmq_broker, redis_broker
from leases.jobs.errors import ActorUnknown, AlreadyDone, KeyTaken, LetterInexact
from leases.models import DeadLetter, Receipt
from tests.jobs import actors
from tests.jobs.actors import QUEUE

pytestmark = pytest.mark.django_db(transaction=True)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("as told")

    __repr__ = __str__


def died(*args: Any, error: Exception | None = None, **changes: Any) -> DeadLetter:
    """Return the dead letter of a message of `plain`, with some fields changed."""
    message = actors.plain.message(*args).copy(**changes)
    proxy = dramatiq.MessageProxy(message)
    proxy.stuff_exception(error or RuntimeError("as told"))
    dead_letters.record(proxy, dramatiq.get_broker())
    return DeadLetter.objects.latest("id")


@pytest.mark.parametrize(
    ("carried", "kept"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        ("a\x00b", "ab"),
        ("half \ud800", "half ?"),
        (Decimal("1.50"), "Decimal('1.50')"),
        ({(1, 2): "a"}, {"(1, 2)": "a"}),
        ((1, 2), [1, 2]),
        (Mute(), "Mute, which cannot be shown: RuntimeError"),
    ],
)
def test_message_with_what_json_cannot_carry_is_kept_as_text_and_not_replayed(
    carried: Any, kept: Any, redis: Any
) -> None:
    """The row could not be written, or a replay ran with other arguments."""
    letter = died(carried)
    assert (letter.args, letter.is_exact) == ([kept], False)
    with pytest.raises(LetterInexact):
        dead_letters.replay(letter, by="ada")
    assert not redis.llen(f"dramatiq:{QUEUE}")


@pytest.mark.parametrize("carried", ["\\u0000", "\\\\u0000", "ß 😀", 1.5, [None, {"a": [True, 10**40]}]])
def test_message_of_json_is_kept_and_replayed_exactly(carried: Any, redis: Any) -> None:
    letter = died(carried)
    assert (letter.args, letter.is_exact) == ([carried], True)
    dead_letters.replay(letter, by="ada")
    (data,) = redis.hvals(f"dramatiq:{QUEUE}.msgs")
    assert dramatiq.Message.decode(data).args == (carried,)


def test_message_that_nothing_can_show_is_kept_all_the_same() -> None:
    nested: list[Any] = []
    for _ in range(5000):
        nested = [nested]
    assert not died(nested).is_exact
    assert not died(10**5000).is_exact


def test_message_with_a_long_id_and_an_error_without_text_is_kept() -> None:
    letter = died("ada", message_id="x" * 80, error=Mute())
    assert (letter.message_id, letter.is_exact) == ("x" * 64, False)
    assert letter.reason == "Mute, which cannot be shown: RuntimeError"


def test_message_whose_arguments_give_no_key_is_kept() -> None:
    """The template of the key looked into them, and raised what nobody expected."""
    message = actors.by_order.message({})
    dead_letters.record(dramatiq.MessageProxy(message), dramatiq.get_broker())
    assert DeadLetter.objects.get().key == ""


def test_dead_letter_whose_connection_is_cut_is_written_when_there_is_one_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error was swallowed, and the broker alone knew of the message."""
    monkeypatch.setattr(worker_dead_letters, "WRITE_AGAIN_S", 0.05)
    message = dramatiq.MessageProxy(actors.plain.message("ada"))
    cut_connection()
    middleware = DeadLetters()
    middleware.before_nack(dramatiq.get_broker(), message)
    assert DeadLetter.objects.count() == 1
    middleware.before_nack(dramatiq.get_broker(), message)  # the broker was away
    assert DeadLetter.objects.count() == 1


@pytest.mark.parametrize("kind", [redis_broker.Consumer, rabbitmq_broker.Consumer])
def test_message_that_a_leaving_worker_could_not_make_a_dead_letter_is_delivered_again(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    message: Any = dramatiq.MessageProxy(actors.plain.message("ada"))
    middleware: Any = DeadLetters()
    middleware.before_worker_shutdown(None, None)
    cut_connection()
    middleware.before_nack(None, message)
    assert not DeadLetter.objects.exists()
    kind.nack(object(), message)  # would need more of a consumer than that to tell the broker
    kind.ack(object(), message)


def cut_connection() -> None:
    """Have the server end this thread's connection without its knowing."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    with psycopg.connect(**connection.get_connection_params()) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


def test_replay_goes_to_the_queue_that_the_actor_has_now(redis: Any) -> None:
    """A queue that nobody reads any more took it, and the letter counted as replayed."""
    dead_letters.replay(died("ada", queue_name="abandoned"), by="ada")
    assert (redis.llen("dramatiq:abandoned"), redis.llen(f"dramatiq:{QUEUE}")) == (0, 1)


def test_replay_for_an_actor_that_is_gone_is_refused_by_its_name() -> None:
    letter = died("ada", actor_name="from_yesterday")
    with pytest.raises(ActorUnknown, match="from_yesterday"):
        dead_letters.replay(letter, by="ada")
    letter.refresh_from_db()
    assert letter.replay_asked_at is None


def test_replay_under_a_key_of_another_function_is_not_advised_to_open_it() -> None:
    """Whoever did had a second message of the other function take effect again."""
    letter = died("ada", actor_name="welcome")
    actors.welcome("ada")
    with pytest.raises(AlreadyDone, match="Open the key again"):
        dead_letters.replay(letter, by="ada")
    Receipt.objects.update(actor="another.function")
    with pytest.raises(KeyTaken, match=r"another\.function"):
        dead_letters.replay(letter, by="ada")
