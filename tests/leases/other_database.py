"""A second PostgreSQL server that a test may restart, copy, and reach through a pooler, under the alias `other`."""

import copy
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.db import connection, connections

from leases.errands import errands
from project.devservices.binaries import find_postgres
from project.devservices.postgres import PostgresServer
from tests.servers.scratch import Scratch

ALIAS = "other"


def new_server(scratch: Scratch, name: str) -> PostgresServer:
    binaries = find_postgres()
    if scratch.account:
        binaries = binaries.reachable_by(scratch.account, scratch.folder)
    return PostgresServer(scratch.folder / name, binaries, scratch.account, {"fsync": "off"})


@contextmanager
def reached_at(port: int, *, database: str = PostgresServer.database) -> Iterator[None]:
    """Have the alias `other` mean the server at `port` within the body."""
    before = connections.databases.get(ALIAS)
    forget_connection()
    connections.databases[ALIAS] = settings_for(port, database)
    try:
        yield
    finally:
        forget_connection()
        connections.databases.pop(ALIAS)
        if before is not None:
            connections.databases[ALIAS] = before


@contextmanager
def second_tables(django_db_blocker: Any) -> Iterator[None]:
    """Have the alias `other` mean tables of leases that are another database's or project's, within the body."""
    here = connection.settings_dict
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA second")
        try:
            for table in connection.introspection.table_names(cursor):
                if table.startswith("leases_"):
                    cursor.execute(f"CREATE TABLE second.{table} (LIKE public.{table} INCLUDING ALL)")
            with reached_at(int(here["PORT"]), database=here["NAME"]):
                connections.databases[ALIAS]["OPTIONS"] = {"options": "-c search_path=second,public"}
                yield
                errands.finish()  # one that works there would not close what it opened
        finally:
            cursor.execute("DROP SCHEMA second CASCADE")


def settings_for(port: int, database: str) -> dict[str, Any]:
    settings = copy.deepcopy(connections.databases["default"])
    return {**settings, "HOST": "127.0.0.1", "PORT": str(port), "NAME": database, "USER": "postgres", "PASSWORD": ""}


def forget_connection() -> None:
    if ALIAS in {connection.alias for connection in connections.all(initialized_only=True)}:
        connections[ALIAS].close()
        del connections[ALIAS]


def migrate() -> None:
    call_command("migrate", database=ALIAS, verbosity=0)


def base_backup(server: PostgresServer, scratch: Scratch, target: Path) -> None:
    """Copy the running server's data as a replica would start from."""
    account = scratch.account.identity if scratch.account else {}
    tool = server._binaries.postgres.with_name("pg_basebackup")
    command = [str(tool), "-h", "127.0.0.1", "-p", str(server.port), "-U", "postgres", "-D", str(target), "-c", "fast"]
    subprocess.run(command, check=True, capture_output=True, cwd="/", **account)
