"""A new project per test, on a fresh database of the run's server."""

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tests.standalone.new_project import NewProject


@pytest.fixture
def new_project(tmp_path: Path) -> Iterator[NewProject]:
    url = os.environ["DATABASE_URL"]
    server, _, _ = url.rpartition("/")
    name = sql.Identifier(f"standalone_{os.getpid()}")
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))
        connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
        yield NewProject(tmp_path, database_url=f"{server}/standalone_{os.getpid()}")
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
