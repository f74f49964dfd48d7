"""How much of its ttl a lease is held for, renewals aside.

A ttl is a guess at how long the work takes. Renewal covers a guess that is too short, but then every hold depends on
it: a keeper that is late by a few seconds loses leases. So it is said when the guess is wearing thin: when of one kind
of resource (the part of its name before the first colon) the 99th percentile of the hold time passes half the ttl.
"""

from dataclasses import dataclass
from datetime import timedelta

from django.db import connections

from leases.conf import conf

#: The share of the ttl that the 99th percentile may use.
THIN_ABOVE = 0.5
#: Upper ends of the histogram's buckets, as shares of the ttl; one more bucket is open.
BUCKETS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)

_COUNTS = [
    f"count(*) FILTER (WHERE hold_ms > ttl_ms * {lower} AND hold_ms <= ttl_ms * {upper})"
    for lower, upper in zip((-1.0, *BUCKETS), (*BUCKETS, "float8 'infinity'"), strict=True)
]

# Leases that expired or were broken say when somebody noticed, not how long the work took; those of this app itself
# are held on purpose. Those that have not ended count as long as they have lasted, or the slowest would be left out.
# The time is the statement's, since no index helps with a volatile one.
_HOLDS = f"""
WITH holds AS MATERIALIZED (
  SELECT CASE WHEN strpos(resource, ':') > 0 THEN split_part(resource, ':', 1) ELSE '' END AS kind, ttl_ms,
         greatest(0, extract(epoch FROM coalesce(ended_at, statement_timestamp()) - acquired_at)::float8 * 1000)
           AS hold_ms
    FROM leases_leaserecord
   WHERE acquired_at > statement_timestamp() - make_interval(secs => %(window_s)s)
     AND "end" IN ('', 'released', 'lost') AND resource NOT LIKE 'leases:%%')
SELECT kind, min(ttl_ms),
       percentile_disc(ARRAY[0.5, 0.9, 0.99, 1]) WITHIN GROUP (ORDER BY hold_ms),
       percentile_disc(0.99) WITHIN GROUP (ORDER BY hold_ms / ttl_ms) AS used,
       ARRAY[{", ".join(_COUNTS)}]
  FROM holds GROUP BY kind ORDER BY used DESC, kind LIMIT 1000
"""  # noqa: S608  # buckets


@dataclass(frozen=True, slots=True)
class Headroom:
    """The hold times of one kind of resource: percentiles, and how many leases fell into each of BUCKETS."""

    kind: str
    ttl: timedelta
    p50: timedelta
    p90: timedelta
    p99: timedelta
    longest: timedelta
    used: float
    counts: tuple[int, ...]

    @property
    def leases(self) -> int:
        return sum(self.counts)

    @property
    def used_percent(self) -> int:
        return round(self.used * 100)

    @property
    def is_thin(self) -> bool:
        return self.used > THIN_ABOVE

    @property
    def advice(self) -> str:
        """What to do about it; empty if nothing."""
        if not self.is_thin:
            return ""
        seconds = -(-self.p99.total_seconds() * 2 // 1)
        return (
            f"Make the ttl of {self.kind or 'these'} leases at least {seconds:.0f} s, or the work under them shorter."
        )


def measure(using: str = "default", *, window: timedelta | None = None) -> list[Headroom]:
    """Return the headroom of each kind of resource leased within `window`, the thinnest first."""
    window = conf.HEADROOM_WINDOW if window is None else window
    with connections[using].cursor() as cursor:
        cursor.execute(_HOLDS, {"window_s": window.total_seconds()})
        rows = cursor.fetchall()
    kinds = []
    for kind, ttl_ms, percentiles_ms, used, counts in rows:
        p50, p90, p99, longest = (timedelta(milliseconds=percentile) for percentile in percentiles_ms)
        kinds.append(Headroom(kind, timedelta(milliseconds=ttl_ms), p50, p90, p99, longest, used, tuple(counts)))
    return kinds
