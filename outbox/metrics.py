"""Metrics for Prometheus, in the default registry; without `prometheus_client` installed they cost and do nothing.

| metric                            | labels           | counts or measures                                         |
|-----------------------------------|------------------|------------------------------------------------------------|
| `outbox_outcomes_total`           | channel, outcome | attempts by what became of them, as `Outcome` names them   |
| `outbox_send_seconds`             | channel          | one attempt to hand over                                   |
| `outbox_lag_seconds`              | channel          | from due to claimed, of the oldest in each batch           |
| `outbox_parked_total`             | channel, state   | messages that came to wait for a person: in_doubt, dead    |
| `outbox_swept_total`              | channel          | messages taken from a drainer that held them too long      |
| `outbox_too_late_total`           | channel          | outcomes known after a newer claim or a decision           |
| `outbox_recipients_refused_total` | channel          | recipients refused for good of messages that were accepted |
| `outbox_breaker_open`             | channel          | hosts of this drainer's that are away                      |
| `outbox_messages`                 | channel, state   | unfinished: due, later, claimed, sending, in_doubt, dead   |
| `outbox_oldest_due_seconds`       | channel          | age of the oldest due message: alert on this one           |
| `outbox_oldest_in_doubt_seconds`  | channel          | age of the oldest message in doubt                         |

The last three are what the database says, asked every 15 s by a drainer that serves metrics.

The steps of the protocol are log lines of the logger `outbox`, each with `extra={"event": ...}`:

| event                      | level    | when                                                                   |
|----------------------------|----------|------------------------------------------------------------------------|
| `outbox.claimed`           | INFO     | a batch is this drainer's (`claim`, `outbox_ids`)                      |
| `outbox.intent`            | INFO     | these are committed as being sent, nothing has left yet                |
| `outbox.handed_over`       | INFO     | the receiver has it, nothing is marked yet (`outbox_id`)               |
| `outbox.recipient_refused` | WARNING  | accepted, but some of its recipients were refused for good             |
| `outbox.marking`           | INFO     | just before the outcomes are written down                              |
| `outbox.marked`            | INFO     | they are written down                                                  |
| `outbox.retried`           | INFO     | refused for now, or not handed over; it is tried again                 |
| `outbox.in_doubt`          | ERROR    | the outcome is unknown; a person decides                               |
| `outbox.dead`              | ERROR    | refused for good, or out of attempts or time                           |
| `outbox.swept`             | WARNING  | taken from a drainer that held it too long, and due again              |
| `outbox.too_late`          | WARNING  | an outcome came after a newer claim, a decision or a deletion: no change |
| `outbox.breaker_opened`    | ERROR    | a receiver is away or lets nobody in; it is tried rarely now (`host`)  |
| `outbox.breaker_closed`    | INFO     | it is back                                                             |
| `outbox.decided`           | WARNING  | a person decided (`action`)                                            |
| `outbox.database_lost`     | ERROR    | the database does not answer; said at every try                        |
| `outbox.database_forgot`   | CRITICAL | the database lost a part of its history; the drainer ends              |
| `outbox.put_right`         | WARNING  | a person accepted the database as it is (`parked`)                     |
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

from outbox.inspection import ChannelStatus

_BUCKETS_S = (0.001, 0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800, 7200, 86400)


class _Nothing:
    """Takes the place of every metric when prometheus_client is not installed."""

    def labels(self, *values: str) -> "_Nothing":
        return self

    def inc(self, amount: float = 1) -> None:
        pass

    def observe(self, amount: float) -> None:
        pass

    def set(self, value: float) -> None:
        pass


_outcomes: Any = _Nothing()
_send: Any = _Nothing()
_lag: Any = _Nothing()
_parked: Any = _Nothing()
_swept: Any = _Nothing()
_too_late: Any = _Nothing()
_recipients_refused: Any = _Nothing()
_breaker: Any = _Nothing()
_messages: Any = _Nothing()
_oldest_due: Any = _Nothing()
_oldest_in_doubt: Any = _Nothing()
available = True

try:
    from prometheus_client import Counter, Gauge, Histogram
except ImportError:
    available = False
else:
    _outcomes = Counter("outbox_outcomes", "Attempts by what became of them.", ["channel", "outcome"])
    _send = Histogram("outbox_send_seconds", "One attempt to hand over.", ["channel"], buckets=_BUCKETS_S)
    _lag = Histogram("outbox_lag_seconds", "From due to claimed.", ["channel"], buckets=_BUCKETS_S)
    _parked = Counter("outbox_parked", "Messages that came to wait for a person.", ["channel", "state"])
    _swept = Counter("outbox_swept", "Messages taken from a drainer that held them too long.", ["channel"])
    _too_late = Counter("outbox_too_late", "Outcomes known after a newer claim or a decision.", ["channel"])
    _recipients_refused = Counter(
        "outbox_recipients_refused", "Recipients refused of messages that were accepted.", ["channel"]
    )
    _breaker = Gauge("outbox_breaker_open", "Hosts that are away.", ["channel"])
    _messages = Gauge("outbox_messages", "Unfinished messages.", ["channel", "state"])
    _oldest_due = Gauge("outbox_oldest_due_seconds", "Age of the oldest due message.", ["channel"])
    _oldest_in_doubt = Gauge("outbox_oldest_in_doubt_seconds", "Age of the oldest message in doubt.", ["channel"])


def claimed(channel: str, *, oldest_lag_s: float) -> None:
    _lag.labels(channel).observe(max(0.0, oldest_lag_s))


@functools.cache
def send_timer(channel: str) -> Callable[[float], None]:
    """What takes the seconds of one send; looked up once, since it is called for every message."""
    observe: Callable[[float], None] = _send.labels(channel).observe
    return observe


def outcome(channel: str, outcome: str, count: int = 1) -> None:
    _outcomes.labels(channel, outcome).inc(count)


def parked(channel: str, state: str) -> None:
    _parked.labels(channel, state).inc()


def swept(channel: str) -> None:
    _swept.labels(channel).inc()


def too_late(channel: str, count: int) -> None:
    _too_late.labels(channel).inc(count)


def recipients_refused(channel: str, count: int) -> None:
    _recipients_refused.labels(channel).inc(count)


def breaker(channel: str, open_hosts: int) -> None:
    _breaker.labels(channel).set(open_hosts)


def stands(channels: Iterable[str], statuses: Iterable[ChannelStatus]) -> None:
    """Set the gauges of these channels; one without unfinished messages stands at zero."""
    known = {status.channel: status for status in statuses}
    for name in channels:
        status = known.get(name) or ChannelStatus(name, 0, 0, 0, 0, 0, 0, None, None)
        for state in ("due", "later", "claimed", "sending", "in_doubt", "dead"):
            _messages.labels(name, state).set(getattr(status, state))
        _oldest_due.labels(name).set(status.oldest_due_seconds or 0.0)
        _oldest_in_doubt.labels(name).set(status.oldest_in_doubt_seconds or 0.0)


def serve(host: str, port: int) -> int:
    """Serve the metrics over HTTP from a thread, and return the port; raises OSError when it is taken."""
    from prometheus_client import start_http_server

    server, _ = start_http_server(port, addr=host)
    return int(server.server_address[1])
