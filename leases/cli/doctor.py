"""`manage.py leases doctor`."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning, run_checks
from django.core.checks.messages import ERROR, WARNING
from django.db import DatabaseError, connections, router
from django_redis import get_redis_connection
from redis.exceptions import RedisError

from leases import fence, forgetting, keys
from leases.checks.databases import pending_apps
from leases.cli.verb import EXIT_FOUND, Verb
from leases.conf import conf
from leases.errors import DatabaseForgot
from leases.functions import BY_TABLE, signature
from leases.jobs.discovery import import_actors
from leases.models import Incident, LeaseRecord, RedisMemory

_FUNCTIONS = """
SELECT name, has_function_privilege(to_regprocedure(name), 'EXECUTE'), current_user FROM unnest(%s::text[]) AS f(name)
"""
_LEVELS = {"error": ERROR, "warning": WARNING}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor: `ok`, `warning` or `error`."""

    level: str
    id: str
    text: str
    hint: str


class Doctor(Verb):
    name = "doctor"
    help = "Run every check of leases, also those that ask the servers, and say what is there."
    examples = """
  manage.py leases doctor
  manage.py leases doctor --fail-level warning --json
"""

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--fail-level", choices=_LEVELS, default="error", help="exit with 1 from this level on (default: error)"
        )

    def run(self, *, database: str, as_json: bool, **options: Any) -> None:
        import_actors()  # what checks say of actors, they say of those that are imported
        messages = run_checks(tags=["leases"], include_deployment_checks=True, databases=[database])
        messages += [*_watched(database), *_migrated(database), *_same_database(database)]
        messages = [message for message in messages if not message.is_silenced()]
        facts = {**_redis_facts(), **_database_facts(database)}
        findings = [
            Finding(
                "error" if message.level >= ERROR else "warning",
                str(message.id),
                f"{message.obj}: {message.msg}" if message.obj and str(message.obj) not in message.msg else message.msg,
                str(message.hint or ""),
            )
            for message in sorted(messages, key=lambda message: -message.level)
        ]
        if as_json:
            self.write_json(
                {
                    "facts": facts,
                    "findings": [{"level": f.level, "id": f.id, "text": f.text, "hint": f.hint} for f in findings],
                }
            )
        else:
            for name, value in facts.items():
                self.write(f"{name + ':':24}{value}")
            for finding in findings:
                self.write(f"{finding.level:8}{finding.id}: {finding.text}")
                self.write(f"{'':8}{finding.hint}")
            if not findings:
                self.write("nothing to complain of")
        if any(message.level >= _LEVELS[options["fail_level"]] for message in messages):
            raise SystemExit(EXIT_FOUND)


def _watched(database: str) -> list[CheckMessage]:
    try:
        if keys.read([fence.place("watcher", using=database)]):
            return []
    except (RedisError, DatabaseError):
        return []
    return [
        Warning(
            "Nobody watches: a holder that freezes is seen only when another takes its resource.",
            hint="Start the workers, if their broker has the middleware LeaseWatcher() of leases.jobs; else start: "
            "manage.py leases watch",
            id="leases.W040",
        )
    ]


def _migrated(database: str) -> list[CheckMessage]:
    try:
        pending = pending_apps(connections[database])
    except DatabaseError:
        return []  # E020 says so
    if "leases" not in pending:
        return list(_complete(database))
    return [
        Error(
            f"{database} lacks tables or functions of leases: nothing can be leased.",
            hint=f"Type: manage.py migrate --database {database}",
            obj=database,
            id="leases.E042",
        )
    ]


def _complete(database: str) -> Iterator[CheckMessage]:
    """Look for what migrations made and somebody took away since, as a partial restore or a test database does."""
    connection = connections[database]
    if connection.vendor != "postgresql" or not router.allow_migrate_model(database, LeaseRecord):
        return
    models = apps.get_app_config("leases").get_models()
    tables = sorted({model._meta.db_table for model in models if model._meta.managed})
    signatures = [signature(function) for made in BY_TABLE.values() for function in made]
    with connection.cursor() as cursor:
        cursor.execute("SELECT t FROM unnest(%s::text[]) AS t WHERE to_regclass(quote_ident(t)) IS NULL", [tables])
        lacking = [f"table {row[0]}" for row in cursor.fetchall()]
        cursor.execute(_FUNCTIONS, [signatures])
        functions = cursor.fetchall()
    lacking += [f"function {name}" for name, may_execute, _ in functions if may_execute is None]
    if lacking:
        yield Error(
            f"{database} lacks {', '.join(lacking)}: migrations have run, and somebody took it away, or search_path "
            "hides it.",
            hint=f"Functions are made anew by: manage.py migrate --database {database}. Tables come from a backup.",
            obj=database,
            id="leases.E043",
        )
    for name, may_execute, role in functions:
        if may_execute is False:
            yield Error(
                f"Role {role} may not execute {name}: nothing can be leased or written.",
                hint=f"Execute: GRANT EXECUTE ON FUNCTION {name} TO {connection.ops.quote_name(role)};",
                obj=database,
                id="leases.E044",
            )


def _same_database(database: str) -> list[CheckMessage]:
    try:
        forgetting.verify(database)
    except DatabaseForgot as error:
        hint = "Do what it says; until then nothing is leased."
        return [Error(str(error), hint=hint, obj=database, id="leases.E041")]
    except DatabaseError:
        pass
    return []


def _redis_facts() -> dict[str, Any]:
    try:
        info = get_redis_connection(conf.REDIS_ALIAS, write=True).info()
    except (RedisError, NotImplementedError, ValueError, KeyError):
        return {}
    return {"redis": f"{info.get('server_name', 'redis')} {info.get('valkey_version') or info.get('redis_version')}"}


def _database_facts(database: str) -> dict[str, Any]:
    try:
        unended = LeaseRecord.objects.using(database).filter(ended_at=None)
        oldest = unended.order_by("acquired_at").values_list("acquired_at", flat=True).first()
        lost = RedisMemory.objects.using(database).filter(pk=conf.REDIS_ALIAS).values_list("lost_at", flat=True).first()
        latest = Incident.objects.using(database).order_by("-seen_at").first()
        return {
            "redis lost its memory": lost or "never while anybody watched",
            "leases not ended": unended.count(),
            "oldest of them since": oldest or "-",
            "fences, about": _estimate(database),
            "latest incident": f"{latest.seen_at:%Y-%m-%d %H:%M:%S} {latest}" if latest else "none",
        }
    except DatabaseError:
        return {}


def _estimate(database: str) -> int:
    """Return how many fences the planner believes there are; counting many would take long."""
    with connections[database].cursor() as cursor:
        cursor.execute("SELECT greatest(0, reltuples)::bigint FROM pg_class WHERE oid = to_regclass('leases_fence')")
        row = cursor.fetchone()
    return int(row[0]) if row else 0
