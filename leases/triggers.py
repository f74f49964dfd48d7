"""The trigger that lets no row of a fenced table be written unless its resource was presented.

One statement-level AFTER trigger for each of INSERT, UPDATE and DELETE: it derives the resource from every changed row
itself and demands, per distinct resource, that the transaction presented it. Statement level, because 100,000 rows
then cost one look per resource; derived from the row, because a row's own column would still hold a current token when
somebody without a lease writes it.
"""

import re
import string
from typing import Any

import pgtrigger
from django.db import models
from pgtrigger import compiler


class FenceTriggerSql(compiler.UpsertTriggerSql):
    """Version 1 of the SQL that installs a fence trigger; migrations refer to it, so it must not change.

    It leaves out pgtrigger's clause that lets a session ignore a trigger. The function sets its own search_path, so
    that no operator or function of it can be shadowed, and asks `IS NOT TRUE`, so that nothing presented means refused.
    A bypass (leases.bypassing) is honoured only in the transaction that opened it, like a token. Where the table's own
    schema has a fence, a token that was presented on another one, found first on the session's search_path, is refused.
    """

    def get_template(self) -> str:
        return """
            CREATE OR REPLACE FUNCTION {pgid}() RETURNS trigger LANGUAGE plpgsql
            SET search_path = pg_catalog, pg_temp AS $$
                DECLARE
                    missing text;
                    presented jsonb := nullif(current_setting('leases.presented', true), '')::jsonb;
                BEGIN
                    IF presented->>'xact' IS DISTINCT FROM pg_current_xact_id()::text THEN
                        presented := NULL;
                    END IF;
                    IF presented->'bypass' = 'true' THEN
                        RETURN NULL;
                    END IF;
                    IF presented->>'fence' <> to_regclass(format('%I.leases_fence', TG_TABLE_SCHEMA))::oid::text THEN
                        RAISE EXCEPTION 'presented %, but % belongs to another', (presented->>'fence')::oid::regclass,
                            TG_RELID::regclass USING ERRCODE = 'LF003';
                    END IF;
                    SELECT resource INTO missing FROM ({func}) AS changed(resource)
                     WHERE (presented->'tokens' ? resource) IS NOT TRUE LIMIT 1;
                    IF FOUND THEN
                        RAISE EXCEPTION 'not presented: %', missing USING ERRCODE = 'LF002',
                            HINT = 'Take its lease with leases.hold(), and write inside lease.transaction().';
                    END IF;
                    RETURN NULL;
                END
            $$;

            DROP TRIGGER IF EXISTS {pgid} ON {table};
            CREATE TRIGGER {pgid} {when} {operation} ON {table} {referencing}
                FOR EACH {level} EXECUTE FUNCTION {execute};

            COMMENT ON TRIGGER {pgid} ON {table} IS '{hash}';
        """


class FenceTrigger(pgtrigger.Trigger):
    """One of the three triggers of a fenced table.

    `resource_template` names the resource by the table's own columns, as in `customer:{customer_id}`. It is part of
    the trigger because migrations compile triggers on historical models, which have fields but no class attributes.
    """

    level = pgtrigger.Statement
    when = pgtrigger.After

    def __init__(self, *, operation: Any, resource_template: str) -> None:
        self.resource_template = resource_template
        sides = {pgtrigger.Insert: {"new"}, pgtrigger.Update: {"old", "new"}, pgtrigger.Delete: {"old"}}[operation]
        self.sides = [f"{side}_rows" for side in sorted(sides)]
        super().__init__(
            name=f"fence_{str(operation).lower()}",
            operation=operation,
            referencing=pgtrigger.Referencing(**{side: f"{side}_rows" for side in sides}),
            func="-",
        )

    def get_func(self, model: Any) -> str:
        parts = parse_template(self.resource_template)
        columns = {name: _quoted(_column(model, name)) for kind, name in parts if kind == "field"}
        distinct = ", ".join(dict.fromkeys(columns.values()))
        rows = " UNION ".join(f"SELECT DISTINCT {distinct} FROM {side}" for side in self.sides)  # noqa: S608  # quoted names
        resource = " || ".join(
            f"{columns[value]}::text" if kind == "field" else _literal(value) for kind, value in parts
        )
        return f"SELECT {resource} FROM ({rows}) AS keys"  # noqa: S608  # quoted names and literals of the template

    def compile(self, model: Any) -> compiler.Trigger:
        return compiler.Trigger(
            name=self.name,
            sql=FenceTriggerSql(
                pgid=self.get_pgid(model),
                func=self.get_func(model),
                table=model._meta.db_table,
                when=self.when,
                operation=self.operation,
                referencing=str(self.referencing),
                level=self.level,
            ),
        )


def fence_triggers(resource_template: str) -> list[FenceTrigger]:
    """Return the three triggers that fence a table whose rows belong to `resource_template`."""
    return [
        FenceTrigger(operation=operation, resource_template=resource_template)
        for operation in (pgtrigger.Insert, pgtrigger.Update, pgtrigger.Delete)
    ]


def parse_template(template: str) -> list[tuple[str, str]]:
    """Split `customer:{customer_id}` into its parts: ("text", "customer:"), ("field", "customer_id").

    Raises ValueError if it names no field, or formats one.
    """
    parts: list[tuple[str, str]] = []
    for text, field, spec, conversion in string.Formatter().parse(template):
        if text:
            parts.append(("text", text))
        if field is not None:
            if not field.isidentifier() or spec or conversion:
                raise ValueError(f"{template!r} may name fields only as in {{customer_id}}")
            parts.append(("field", field))
    if not any(kind == "field" for kind, _ in parts):
        raise ValueError(f"{template!r} names no field of its model, so all rows would share one lease")
    return parts


def _column(model: type[models.Model], attname: str) -> str:
    for field in model._meta.concrete_fields:
        if attname in (field.attname, field.name):
            return str(field.column)
    raise ValueError(f"{model._meta.label} has no field {attname!r}, which its resource template names")


def _literal(text: str) -> str:
    # Two dollar signs side by side would end the body of the trigger's function.
    return "'" + re.sub(r"\$(?=\$)", "$' || '", text.replace("'", "''")) + "'"


def _quoted(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'
