"""`manage.py leases ls` and `show`."""

import argparse
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandError
from django.db.models.functions import Now
from redis.exceptions import RedisError

from leases import keys
from leases.cli.verb import EXIT_ABSENT, Verb, positive, resource, seconds, unavailable
from leases.inspection import live_states
from leases.models import Fence, Incident, Intervention, LeaseRecord

#: How much of a resource's history is shown.
_HISTORY = 10


class Ls(Verb):
    name = "ls"
    help = "List the leases that have not ended, the oldest first."
    examples = """
  manage.py leases ls
  manage.py leases ls --kind customer --json
"""

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--kind", help="only resources whose name begins with KIND and a colon")
        parser.add_argument("--limit", type=positive, default=1000, help="list at most so many (default: 1000)")

    def run(self, *, database: str, as_json: bool, **options: Any) -> None:
        records = LeaseRecord.objects.using(database).filter(ended_at=None)
        if options["kind"]:
            records = records.filter(resource__startswith=options["kind"] + ":")
        found = list(records.annotate(now=Now()).order_by("acquired_at", "pk")[: options["limit"] + 1])
        more, found = found[options["limit"] :], found[: options["limit"]]
        states = live_states(found)
        if as_json:
            self.write_json(
                [
                    {
                        "resource": record.resource,
                        "token": record.token,
                        "holder": record.holder,
                        "state": live.state,
                        "left_s": seconds(live.left),
                        "held_s": seconds(record.now - record.acquired_at),
                        "acquired_at": record.acquired_at,
                        "ttl_ms": record.ttl_ms,
                        "host": record.host,
                        "pid": record.pid,
                        "thread": record.thread,
                    }
                    for record, live in zip(found, states, strict=True)
                ]
            )
        elif found:
            self.write_table(
                ["RESOURCE", "TOKEN", "LEFT", "HELD", "PROCESS", "THREAD"],
                [
                    [
                        record.resource,
                        record.token,
                        live,
                        f"{(record.now - record.acquired_at).total_seconds():.1f} s",
                        f"{record.pid} on {record.host}",
                        record.thread,
                    ]
                    for record, live in zip(found, states, strict=True)
                ],
            )
        else:
            self.write("nothing is leased")
        if more:
            self.warn(f"There are more than {options['limit']}; use --limit or --kind.")
        if any(live.state == "unknown" for live in states):
            raise unavailable("Redis does not answer, so how long they last is not known.")


class Show(Verb):
    name = "show"
    help = "Show everything that is known of one resource."
    examples = """
  manage.py leases show customer:42
"""

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("resource", metavar="RESOURCE", type=resource)

    def run(self, *, database: str, as_json: bool, **options: Any) -> None:
        resource = options["resource"]
        try:
            key = keys.read([resource]).get(resource)
        except RedisError as error:
            raise unavailable(f"Redis does not answer: {error}") from error
        fence = Fence.objects.using(database).filter(pk=resource).values("token", "holder", "changed_at").first()
        of_it = {"resource": resource}
        records = LeaseRecord.objects.using(database).filter(**of_it).order_by("-token")[:_HISTORY]
        incidents = Incident.objects.using(database).filter(**of_it).order_by("-token")[:_HISTORY]
        interventions = Intervention.objects.using(database).filter(**of_it).order_by("-at")[:_HISTORY]
        if key is None and fence is None:
            raise CommandError(
                f"{resource} was never leased. A resource is named in full, as in customer:42.", returncode=EXIT_ABSENT
            )
        facts: dict[str, Any] = {
            "resource": resource,
            "key": key and {"value": key.value, "left_s": seconds(key.left), "is_lease": key.token is not None},
            "fence": fence,
            "records": list(
                records.values("token", "holder", "host", "pid", "thread", "ttl_ms", "acquired_at", "ended_at", "end")
            ),
            "incidents": list(incidents.values("token", "detector", "fate", "host", "pid", "seen_at")),
            "interventions": list(interventions.values("action", "token", "by", "reason", "at")),
        }
        if as_json:
            self.write_json(facts)
            return
        self.write(resource)
        if key is None:
            self.write("key       none: nobody holds it")
        else:
            left = "for ever" if key.left is None else f"for another {key.left.total_seconds():.1f} s"
            self.write(f"key       {key.value} {left}" + ("" if key.token else " (THIS IS NOT A LEASE)"))
        self.write(
            f"fence     token {fence['token']} since {_in_utc(fence['changed_at'])}" if fence else "fence     none"
        )
        for name in ("records", "incidents", "interventions"):
            for entry in facts[name]:
                parts = (
                    f"{key}={_in_utc(value)}" if key.endswith("at") and value else f"{key}={value}"
                    for key, value in entry.items()
                )
                self.write(f"{name.removesuffix('s'):9} " + " ".join(parts))


def _in_utc(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
