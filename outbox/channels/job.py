"""The job channel: an actor is enqueued by a committed transaction only."""

import time
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from outbox.channels.base import Answer, Channel, Outcome, Parcel
from outbox.errors import InvalidContent, PermanentFailure

if TYPE_CHECKING:
    import dramatiq

FIELDS = {"actor", "args", "kwargs", "options"}


class JobChannel(Channel):
    """Sends a Dramatiq message, with the same message id on every attempt.

    A broker delivers at least once anyway, so an unknown outcome is sent again: an actor must bear that. Content: actor
    (its name), optional args, kwargs, options. The actor is declared where publish() is called.
    """

    micro_batch = 20
    resend_when_in_doubt = True

    def prepare(self, content: Mapping[str, Any], *, dedupe_key: str) -> Any:
        """The broker message, complete."""
        if not {"actor"} <= set(content) <= FIELDS or not isinstance(content["actor"], str):
            raise InvalidContent(
                self.name, f"it has the fields {sorted(content)}, not actor (a name), args, kwargs, options"
            )
        broker = _broker()
        actor = broker.actors.get(content["actor"]) if broker else None
        if actor is None:
            raise InvalidContent(
                self.name,
                f"there is no actor {content['actor']!r} in this process; import the module that defines it, or "
                "correct its name",
            )
        args, kwargs, options = content.get("args", []), content.get("kwargs", {}), content.get("options", {})
        if not isinstance(args, list) or not isinstance(kwargs, Mapping) or not isinstance(options, Mapping):
            raise InvalidContent(self.name, "args is a list, kwargs and options are objects")
        if late := {"delay", "eta"} & set(options):
            # Only Dramatiq's own enqueue() puts such a message aside; here it would run at once.
            raise InvalidContent(
                self.name, f"options has {late.pop()!r}; publish(..., not_before=) says when it is due"
            )
        return {
            "queue_name": actor.queue_name,
            "actor_name": actor.actor_name,
            "args": args,
            "kwargs": dict(kwargs),
            "options": dict(options),
            "message_id": str(uuid.uuid4()),
            "message_timestamp": int(time.time() * 1000),
        }

    def send(self, parcel: Parcel) -> Answer:
        """Enqueue it. A broker that fails says nothing about the message, so that costs no attempt."""
        import dramatiq  # only projects that use this channel have it

        try:
            message: dramatiq.Message[Any] = dramatiq.Message(**parcel.payload)
            message.encode()
        except Exception as error:
            raise PermanentFailure(f"the broker message cannot be made: {error!r}") from error
        broker = _broker()
        if broker is None:
            reason = "this process has no broker; call dramatiq.set_broker(...) in an app's ready()"
            return Answer(Outcome.NOT_HANDED_OVER, reason, unreachable=True)
        if getattr(broker, "confirm_delivery", True) is False:
            words = f"{type(broker).__name__} may lose a message unseen; make it with confirm_delivery=True"
            return Answer(Outcome.NOT_HANDED_OVER, words, unreachable=True)
        parcel.deadline.check()
        try:
            broker.declare_queue(message.queue_name)
            broker.enqueue(message)
        except Exception as error:
            return Answer(Outcome.UNKNOWN, f"{type(error).__name__}: {error}", unreachable=True)
        return Answer(Outcome.ACCEPTED, provider_id=message.message_id)

    @property
    def send_timeout(self) -> timedelta:
        """A broker's client may try again by itself for longer; what is repeated then does no harm."""
        return timedelta(seconds=20)


def _broker() -> "dramatiq.Broker | None":
    """Return the broker that the project has set. Dramatiq would make one on this machine, where no worker looks."""
    from dramatiq import broker  # only projects that use this channel have it

    return broker.global_broker
