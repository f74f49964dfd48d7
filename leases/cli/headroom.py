"""`manage.py leases headroom`."""

import argparse
from typing import Any

from leases.cli.verb import EXIT_FOUND, Verb, duration, seconds
from leases.conf import conf
from leases.headroom import BUCKETS, measure

_BAR = " ▁▂▃▄▅▆▇█"


class HeadroomVerb(Verb):
    name = "headroom"
    help = "Show how long leases are held, against their ttl; exits with 1 if the 99th percentile passes half of one."
    examples = """
  manage.py leases headroom
  manage.py leases headroom --window 30d --json

The histogram counts leases held for up to 1/8, 1/4, 1/2, 1, 2, 4, 8 times their ttl, and longer.
"""

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--window", type=duration, help=f"how far back to look (default: {conf.HEADROOM_WINDOW})")

    def run(self, *, database: str, as_json: bool, **options: Any) -> None:
        kinds = measure(database, window=options["window"])
        if as_json:
            self.write_json(
                [
                    {
                        "kind": kind.kind,
                        "leases": kind.leases,
                        "ttl_s": seconds(kind.ttl),
                        "p50_s": seconds(kind.p50),
                        "p90_s": seconds(kind.p90),
                        "p99_s": seconds(kind.p99),
                        "longest_s": seconds(kind.longest),
                        "used": round(kind.used, 4),
                        "thin": kind.is_thin,
                        "histogram": dict(zip([*map(str, BUCKETS), "longer"], kind.counts, strict=True)),
                    }
                    for kind in kinds
                ]
            )
        elif kinds:
            self.write_table(
                ["KIND", "LEASES", "TTL", "P50", "P90", "P99", "LONGEST", "P99/TTL", "⅛ ¼ ½ 1 2 4 8 +"],
                [
                    [
                        kind.kind or "(none)",
                        kind.leases,
                        *(f"{d.total_seconds():.1f} s" for d in (kind.ttl, kind.p50, kind.p90, kind.p99, kind.longest)),
                        f"{kind.used:.0%}",
                        " ".join(_bar(count, max(kind.counts)) for count in kind.counts),
                    ]
                    for kind in kinds
                ],
            )
        else:
            self.write("nothing was leased in that time")
        thin = [kind for kind in kinds if kind.is_thin]
        for kind in thin:
            self.warn(kind.advice)
        if thin:
            raise SystemExit(EXIT_FOUND)


def _bar(count: int, highest: int) -> str:
    return _BAR[-(-count * (len(_BAR) - 1) // highest)]
