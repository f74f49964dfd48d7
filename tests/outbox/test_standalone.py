"""A project made from nothing, with this app alone: no lease, no Redis, no broker, no admin."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection

from .smtp_server import MailServer

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = """
import os
SECRET_KEY = "for-tests-only"
USE_TZ = True
INSTALLED_APPS = ["outbox"]
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", **eval(os.environ["ALONE_DATABASE"])}}
EMAIL_HOST, EMAIL_PORT, EMAIL_TIMEOUT = "127.0.0.1", int(os.environ["ALONE_MAIL_PORT"]), 5
DEFAULT_FROM_EMAIL = "shop@example.com"
"""
SHOP = """
import django, sys
django.setup()
from django.core.management import call_command
from django.db import transaction
import outbox
call_command("check", fail_level="WARNING")
call_command("migrate", verbosity=0)
with transaction.atomic():
    mail = {"to": "anna@example.org", "subject": "Your order", "text": "Thank you."}
    outbox.publish("email", mail, dedupe_key="order:7:confirmation")
call_command("drain_outbox", "--until-empty", "--json")
call_command("outbox", "status")
strangers = {"leases", "billing", "project", "redis", "django_redis", "dramatiq", "pgtrigger", "httpx", "environ"}
print("imported:", sorted(strangers & set(sys.modules)))
"""


@pytest.fixture
def database(transactional_db: None) -> Iterator[dict[str, Any]]:
    """An empty database beside the test's."""
    given = connection.get_connection_params()
    server = {name: given[name] for name in ("host", "port", "user", "password") if given.get(name)}
    name = f"alone_{os.getpid()}"
    with psycopg.connect(**server, dbname=given["dbname"], autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"')
        yield {"NAME": name, **{key.upper(): value for key, value in server.items()}}
        admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def test_project_with_the_outbox_alone_publishes_and_drains(
    database: dict[str, Any], mail_server: MailServer, tmp_path: Path
) -> None:
    (tmp_path / "shop_settings.py").write_text(SETTINGS)
    env = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
        "DJANGO_SETTINGS_MODULE": "shop_settings",
        "ALONE_DATABASE": repr(database),
        "ALONE_MAIL_PORT": str(mail_server.port),
    }
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", SHOP], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    assert '"sent": 1' in run.stdout
    assert "nothing is unfinished" in run.stdout
    assert "imported: []" in run.stdout
    assert [envelope.rcpt_tos for envelope in mail_server.received] == [("anna@example.org",)]
