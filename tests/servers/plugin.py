"""Gives the suite its environment and its servers, before Django reads the settings.

Unless DATABASE_URL and REDIS_URL are in the environment, the run gets a PostgreSQL and a Redis-like server of its own.
What REDIS_URL names is flushed by the tests. Under pytest-xdist the workers share the PostgreSQL server, each with its
own database, and each has a Redis-like server of its own.

Nothing else is inherited: neither `.env` nor the project's variables of the developer's shell.
"""

import os
import re
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
import redis

from project.devservices.accounts import postgres_account
from project.devservices.binaries import find_postgres, find_valkey
from project.devservices.postgres import PostgresServer
from project.devservices.valkey import ValkeyServer
from tests.servers.scratch import Scratch

BASE_DIR = Path(__file__).resolve().parents[2]
SCRATCH = pytest.StashKey[Scratch]()


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    """Set up around pytest-django's own hook, which loads the settings."""
    if not early_config.known_args_namespace.help and not early_config.known_args_namespace.version:
        scratch = Scratch(postgres_account())
        early_config.stash[SCRATCH] = scratch
        early_config.add_cleanup(scratch.close)
        heed_interrupts()
        set_environment()
        start_servers(scratch)
    yield


def heed_interrupts() -> None:
    """Give SIGINT its meaning back: a job in a shell's background ignores it, and so would what a test interrupts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def set_environment() -> None:
    """Leave, of all variables the project reads, those that say which servers the run is about."""
    for name in re.findall(r"^#?([A-Z_]+)=", (BASE_DIR / ".env.example").read_text(), re.MULTILINE):
        if name not in ("DATABASE_URL", "REDIS_URL"):
            os.environ.pop(name, None)
    os.environ |= {
        "ENV_FILE": os.devnull,
        # All processes of the suite share one RabbitMQ, and the first one's queue would be inherited by the others.
        "JOBS_QUEUE": f"jobs{os.getpid()}",
        "SECRET_KEY": "for-tests-only",
        "ALLOWED_HOSTS": "localhost,127.0.0.1,testserver",
        "HTTPS": "off",
    }


def start_servers(scratch: Scratch) -> None:
    """Start what the environment does not name, and name it there: for the settings, workers and subprocesses."""
    if not os.environ.get("DATABASE_URL"):
        os.environ["DATABASE_URL"] = start_postgres(scratch).url
    given = os.environ.get("REDIS_URL")
    kinds = kinds_like(given) if given else ("valkey", "redis")
    scratch.redis_kinds = kinds
    if not given or "PYTEST_XDIST_WORKER" in os.environ:
        os.environ["REDIS_URL"] = start_redis(scratch, "redis").url


def start_postgres(scratch: Scratch, name: str = "postgres") -> PostgresServer:
    """Start a PostgreSQL whose data need not survive a power cut, in its own folder `name`."""
    binaries = find_postgres()
    if scratch.account:
        binaries = binaries.reachable_by(scratch.account, scratch.folder)
    server = PostgresServer(scratch.folder / name, binaries, scratch.account, {"fsync": "off"})
    server.start()
    return server


def start_redis(scratch: Scratch, name: str) -> ValkeyServer:
    """Start a server of the family that the run is about, in its own folder `name`."""
    server = ValkeyServer(scratch.folder / name, find_valkey(scratch.redis_kinds))
    server.start()
    return server


def kinds_like(url: str) -> tuple[str, ...]:
    """Return the family of the server at `url`."""
    with redis.Redis.from_url(url) as client:
        return ("valkey",) if client.info("server").get("server_name") == "valkey" else ("redis",)
