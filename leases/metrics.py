"""Metrics for Prometheus, in the default registry; without `prometheus_client` installed they cost and do nothing.

| metric                               | labels         | counts or measures                                         |
|--------------------------------------|----------------|------------------------------------------------------------|
| `leases_acquired_total`              | kind           | leases granted and registered                              |
| `leases_busy_total`                  | kind           | calls that found another holder, also after waiting        |
| `leases_wait_seconds`                | kind           | from the call to the lease                                 |
| `leases_hold_seconds`                | kind           | from the lease to its release, or until it was found lost  |
| `leases_renewals_total`              | answer         | renewals: renewed, absent (Redis forgot), other, error     |
| `leases_keeper_lag_seconds`          |                | how late a round of renewals began                         |
| `leases_lost_total`                  | kind, cause    | leases lost under their holder; cause as Incident.detector |
| `leases_stale_writes_refused_total`  | kind           | transactions refused because their token was stale         |
| `leases_incidents_total`             | detector, fate | incidents opened by this process                           |
| `leases_headroom_used_ratio`         | kind           | 99th percentile of the hold time as a share of the ttl;    |
|                                      |                | set by the watcher, alert above 0.5                        |

`kind` is the part of the resource's name before its first colon, empty if there is none: names never become labels.

The steps of the protocol are log lines of the logger `leases`, each with `extra={"event": ...}` and, where there is
one, `resource` and `token`:

| event                  | level   | when                                                                            |
|------------------------|---------|---------------------------------------------------------------------------------|
| `lease.acquired`       | INFO    | Redis granted the resource                                                      |
| `lease.registered`     | INFO    | the fence accepted the token: the lease is held                                 |
| `lease.busy`           | INFO    | another holder has it (`holder`)                                                |
| `lease.renewal_failed` | WARNING | Redis did not answer a renewal; tried again until the deadline                  |
| `lease.long`           | WARNING | held for half of LEASES_MAX_HOLD                                                |
| `lease.lost`           | WARNING | found lost by its own process (`detector`)                                      |
| `lease.releasing`      | INFO    | the work is done, nothing is given back yet                                     |
| `lease.released`       | INFO    | given back                                                                      |
| `lease.gone`           | WARNING | its key was gone or taken at its release, and nobody else had had the lease     |
| `lease.blocker_ended`  | WARNING | a frozen transaction in the way of a new holder was ended (`pid`)               |
| `lease.broken`         | WARNING | a person broke it (`by`)                                                        |
| `incident`             | WARNING | opened, or more became known (`detector`, `fate`); INFO if its process is gone  |
| `fences.raised`        | WARNING | the database was accepted after a failover or restore (`fences`)                |
| `watcher.elected`      | INFO    | this process watches now                                                        |
| `watcher.blind`        | WARNING | the watcher cannot reach a server; said once per outage                         |
| `job.put_back`         | INFO    | a job went back to its queue (`message_id`)                                     |

What is built on leases has events of its own: `job.*`, `jobs.*`, `receipt.*`, `scheduler.*` and `slot.*`.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leases.headroom import Headroom

# From a millisecond to an hour: jobs that lease are seconds to minutes long, waiting is shorter.
_BUCKETS_S = (0.001, 0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


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


_acquired: Any = _Nothing()
_busy: Any = _Nothing()
_wait: Any = _Nothing()
_hold: Any = _Nothing()
_renewals: Any = _Nothing()
_lag: Any = _Nothing()
_lost: Any = _Nothing()
_stale: Any = _Nothing()
_incidents: Any = _Nothing()
_headroom: Any = _Nothing()

try:
    from prometheus_client import Counter, Gauge, Histogram
except ImportError:
    pass
else:
    _acquired = Counter("leases_acquired", "Leases granted and registered.", ["kind"])
    _busy = Counter("leases_busy", "Calls that found another holder.", ["kind"])
    _wait = Histogram("leases_wait_seconds", "From the call to the lease.", ["kind"], buckets=_BUCKETS_S)
    _hold = Histogram("leases_hold_seconds", "From the lease to its end.", ["kind"], buckets=_BUCKETS_S)
    _renewals = Counter("leases_renewals", "Renewals by their answer.", ["answer"])
    _lag = Histogram("leases_keeper_lag_seconds", "How late a round of renewals began.", buckets=_BUCKETS_S)
    _lost = Counter("leases_lost", "Leases lost under their holder.", ["kind", "cause"])
    _stale = Counter("leases_stale_writes_refused", "Transactions refused for a stale token.", ["kind"])
    _incidents = Counter("leases_incidents", "Incidents opened by this process.", ["detector", "fate"])
    _headroom = Gauge(
        "leases_headroom_used_ratio",
        "99th percentile of the hold time as a share of the ttl.",
        ["kind"],
        multiprocess_mode="mostrecent",
    )


def acquired(resource: str, *, waited_s: float) -> None:
    _acquired.labels(_kind(resource)).inc()
    _wait.labels(_kind(resource)).observe(waited_s)


def busy(resource: str) -> None:
    _busy.labels(_kind(resource)).inc()


def released(resource: str, *, held_s: float) -> None:
    _hold.labels(_kind(resource)).observe(held_s)


def lost(resource: str, *, cause: str, held_s: float) -> None:
    _lost.labels(_kind(resource), cause).inc()
    _hold.labels(_kind(resource)).observe(held_s)


def renewed(answers: Iterable[object], *, late_s: float) -> None:
    """Count a round of renewals; an answer that is no text is an error."""
    _lag.observe(max(0.0, late_s))
    for answer in answers:
        _renewals.labels(answer if isinstance(answer, str) else "error").inc()


def stale_write_refused(resource: str) -> None:
    _stale.labels(_kind(resource)).inc()


def incident(*, detector: str, fate: str) -> None:
    _incidents.labels(detector, fate).inc()


def headroom(kinds: "Iterable[Headroom]") -> None:
    for kind in kinds:
        _headroom.labels(kind.kind).set(kind.used)


def _kind(resource: str) -> str:
    kind, colon, _ = resource.partition(":")
    return kind if colon else ""
