"""Checks of the databases with fences; they connect, so they run with `check --database`, `migrate`, and the doctor."""

from collections.abc import Iterator, Sequence
from typing import Any

import pgtrigger
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DatabaseError, connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor

from leases import headroom
from leases.models import Fence
from leases.triggers import FenceTrigger

_TRIGGERS = """
SELECT t.tgname, t.tgenabled, obj_description(t.oid, 'pg_trigger')
  FROM pg_trigger t WHERE t.tgrelid = to_regclass(%s) AND NOT t.tgisinternal
"""
# What a partition, or a table that inherits, lacks of its parent's fence triggers, as the statement that adds it.
_PARTITIONS = """
WITH RECURSIVE below AS (
  SELECT inhrelid AS relid FROM pg_inherits WHERE inhparent = to_regclass(%(table)s)
  UNION SELECT i.inhrelid FROM pg_inherits i JOIN below b ON i.inhparent = b.relid)
SELECT b.relid::regclass::text,
       regexp_replace(pg_get_triggerdef(t.oid), ' ON .*? (REFERENCING|FOR EACH) ',
                      ' ON ' || replace(b.relid::regclass::text, '\\', '\\\\') || ' \\1 ') || ';'
  FROM below b JOIN pg_trigger t ON t.tgrelid = to_regclass(%(table)s) AND t.tgname = ANY(%(names)s)
 WHERE NOT EXISTS (
   SELECT FROM pg_trigger p
    WHERE p.tgrelid = b.relid AND p.tgfoid = t.tgfoid AND p.tgtype = t.tgtype AND p.tgenabled IN ('O', 'A'))
 ORDER BY 1, t.tgname
"""


@register(Tags.database, "leases")
def fences(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Check the databases that have fences; without `databases` none is asked."""
    messages: list[CheckMessage] = []
    for alias in databases or ():
        connection = connections[alias]
        if connection.vendor != "postgresql" or not router.allow_migrate_model(alias, Fence):
            continue
        try:
            messages += _check(connection)
        except DatabaseError as error:
            hint = f"Start it, or correct DATABASES[{alias!r}], or the variable it is read from, such as DATABASE_URL."
            messages.append(Error(f"The database does not answer: {error}", hint=hint, obj=alias, id="leases.E020"))
    return messages


def _check(connection: BaseDatabaseWrapper) -> Iterator[CheckMessage]:
    pending = pending_apps(connection)
    if "leases" in pending:  # `migrate` must not be refused for it; the doctor says so
        return
    yield from _idle_timeout(connection)
    yield from _headroom(connection)
    for model, triggers in _fenced_tables().items():
        # Until its migrations have run a table may lack what they add, and `migrate` must not be refused for that.
        if model._meta.app_label not in pending and router.allow_migrate_model(connection.alias, model):
            yield from _triggers(connection, model, triggers)
            yield from _partitions(connection, model, triggers)


def _triggers(connection: BaseDatabaseWrapper, model: Any, triggers: list[FenceTrigger]) -> Iterator[CheckMessage]:
    with connection.cursor() as cursor:
        cursor.execute(_TRIGGERS, [_quoted_table(connection, model)])
        installed = {name: (enabled, comment) for name, enabled, comment in cursor.fetchall()}
    known = {trigger.get_pgid(model) for trigger in triggers}
    for name in sorted(installed):
        if name.startswith("pgtrigger_fence_") and name not in known:
            yield Warning(
                f"{model._meta.db_table} keeps fence trigger {name} of a former name of its model: once lease_resource "
                "changes, it refuses every write.",
                hint=f"Execute: DROP TRIGGER {connection.ops.quote_name(name)} ON {_quoted_table(connection, model)};",
                obj=model,
                id="leases.W026",
            )
    for trigger in triggers:
        enabled, comment = installed.get(trigger.get_pgid(model), (None, None))
        uri = trigger.get_uri(model)
        if enabled is None or comment != trigger.compile(model).hash:
            what = "lacks" if enabled is None else "has an outdated"
            yield Error(
                f"{model._meta.db_table} {what} fence trigger {trigger.name}: the database lets writes without a lease "
                "through.",
                hint=f"Type: manage.py pgtrigger install {uri} --database {connection.alias}",
                obj=model,
                id="leases.E021",
            )
        elif enabled not in ("O", "A"):
            yield Error(
                f"The fence trigger {trigger.name} of {model._meta.db_table} is disabled: the database lets writes "
                "without a lease through.",
                hint=f"Type: manage.py pgtrigger enable {uri} --database {connection.alias}",
                obj=model,
                id="leases.E022",
            )


def _partitions(connection: BaseDatabaseWrapper, model: Any, triggers: list[FenceTrigger]) -> Iterator[CheckMessage]:
    names = [trigger.get_pgid(model) for trigger in triggers]
    with connection.cursor() as cursor:
        cursor.execute(_PARTITIONS, {"table": _quoted_table(connection, model), "names": names})
        missing: dict[str, list[str]] = {}
        for partition, statement in cursor.fetchall():
            missing.setdefault(partition, []).append(statement)
    for partition, statements in missing.items():
        yield Error(
            f"{partition}, a partition of {model._meta.db_table}, lacks fence triggers: whoever names it directly "
            "writes without a lease.",
            hint="Execute: " + " ".join(statements),
            obj=model,
            id="leases.E023",
        )


def _idle_timeout(connection: BaseDatabaseWrapper) -> Iterator[CheckMessage]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('idle_in_transaction_session_timeout'), current_user")
        timeout, role = cursor.fetchone()
    if timeout == "0":
        yield Warning(
            f"On {connection.alias} a transaction may idle for ever: a process that freezes before it presents its "
            "lease keeps its row locks, and others wait for them.",
            hint=f"Execute: ALTER ROLE {connection.ops.quote_name(role)} "
            "SET idle_in_transaction_session_timeout = '60s';",
            obj=connection.alias,
            id="leases.W024",
        )


def _headroom(connection: BaseDatabaseWrapper) -> Iterator[CheckMessage]:
    for kind in headroom.measure(connection.alias):
        if kind.is_thin:
            yield Warning(
                f"Of {kind.leases} {kind.kind or 'unnamed'} leases the 99th percentile was held for "
                f"{kind.p99.total_seconds():.1f} s, {kind.used_percent} % of its ttl: every hold depends on renewal.",
                hint=f"{kind.advice} Look at: manage.py leases headroom --database {connection.alias}",
                obj=kind.kind,
                id="leases.W025",
            )


def _fenced_tables() -> dict[Any, list[FenceTrigger]]:
    found: dict[Any, list[FenceTrigger]] = {}
    for model, trigger in pgtrigger.registered():
        if isinstance(trigger, FenceTrigger):
            found.setdefault(model, []).append(trigger)
    return found


def pending_apps(connection: BaseDatabaseWrapper) -> set[str]:
    """Return the apps of which migrations have not run in this database."""
    executor = MigrationExecutor(connection)
    return {migration.app_label for migration, _ in executor.migration_plan(executor.loader.graph.leaf_nodes())}


def _quoted_table(connection: BaseDatabaseWrapper, model: Any) -> str:
    return connection.ops.quote_name(model._meta.db_table)
