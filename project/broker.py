"""The Dramatiq broker, built once and set before any actor is imported."""

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage


def make_broker(url: str) -> dramatiq.Broker:
    """Return the broker that `url` names; `redis://` is understood."""
    broker = RedisBroker(url=url)
    broker.add_middleware(CurrentMessage())
    return broker
