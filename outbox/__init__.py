"""A transactional outbox: what a transaction decided to send is a row of that transaction, and is sent at most once.

A *message* is one row. It is published inside the caller's transaction, so it exists exactly if what it tells about
exists. Drainers, any number of them, send it later:

                   ┌───────── given back, claim ran out ─────────┐
                   ▼                                             │
    publish ──► pending ──claim──► claimed ──intent──► sending ──┴─accepted──► sent
                 ▲  │                 │                   │ │ │                  ▲
                 │  └─────cancel──────┴──► cancelled      │ │ └─silence──► in_doubt ──► (a person decides, or a late
                 │                                        │ │                            proof by the same claim)
                 └────── refused for now, not handed over ┘ └─refused for good──► dead

* **claim**: a drainer takes a batch until `claimed_until`, under a number that only goes up. Every later write of that
  drainer names the number; under a newer number it changes nothing.
* **intent**: `sending` is committed *before* anything is handed over. So a drainer that dies can leave a message that
  was sent and is not marked, but never one that looks unsent. Attempts are counted here.
* **send**: with no transaction open. The channel says what happened: accepted, refused for now, refused for good,
  not handed over, or unknown. Only the first four are certain.
* **in doubt**: handed over, outcome unknown. It is not sent again by itself, because a person cannot unread an email.
  A receiver that honours an idempotency key is another matter: see `outbox.channels.base.Channel.key_window`.

The database's clock decides everything that two drainers compare. Neither Redis nor a broker is needed.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outbox.publishing import cancel, publish

__all__ = ["cancel", "publish"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from outbox import publishing  # models can only be imported once the apps are ready

        return getattr(publishing, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
