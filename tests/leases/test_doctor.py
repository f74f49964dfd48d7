"""`manage.py leases doctor`: what it finds, and that it is content once its hint was followed."""

import json
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from leases import fence, hold
from leases.functions import BY_TABLE, PRESENT, signature
from tests.leases.test_commands import leases

pytestmark = pytest.mark.django_db(transaction=True)


def test_doctor_runs_every_check_and_fails_from_the_level_asked_for(redis_server: Any, settings: Any) -> None:
    settings.CACHES = {
        **settings.CACHES,
        "own": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": redis_server.url},
    }
    settings.LEASES_REDIS_ALIAS = "own"
    redis_server.client().config_set("save", "60 1")
    code, out, _ = leases("doctor")
    assert code == 0
    assert "leases.W024" in out  # PostgreSQL was asked
    assert "leases.W040" in out  # nobody watches
    with hold(fence.place("watcher", using="default")):
        assert "leases.W040" not in leases("doctor")[1]
    assert leases("doctor", "--fail-level", "warning")[0] == 1
    redis_server.client().config_set("maxmemory-policy", "allkeys-lru")
    code, out, _ = leases("doctor", "--json")
    assert code == 1
    found = json.loads(out)
    assert found["findings"][0]["id"] == "leases.E033"
    assert found["findings"][0]["hint"].startswith("Type: redis-cli")
    assert found["facts"]["leases not ended"] == 0


def test_doctor_still_speaks_when_redis_does_not(unreachable_redis: None) -> None:
    code, out, _ = leases("doctor")
    assert code == 1
    assert "leases.E030" in out


def test_doctor_names_tables_that_were_never_made() -> None:
    recorder = MigrationRecorder(connection)
    recorder.record_unapplied("leases", "0002_jobs")
    try:
        code, out, _ = leases("doctor")
    finally:
        recorder.record_applied("leases", "0002_jobs")
    assert code == 1
    assert "leases.E042: default lacks tables or functions of leases" in out
    assert "manage.py migrate --database default" in out
    assert "leases.E042" not in leases("doctor")[1]


@pytest.mark.parametrize("function", [made for by_table in BY_TABLE.values() for made in by_table], ids=signature)
def test_doctor_names_a_function_that_is_gone_and_migrate_makes_it_again(function: tuple[str, str]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(function[1])
    code, out, _ = leases("doctor")
    assert code == 1
    assert f"leases.E043: default lacks function {signature(function)}" in out
    call_command("migrate", "leases", database="default", verbosity=0)
    assert "leases.E043" not in leases("doctor")[1]


def test_doctor_names_a_table_that_is_gone() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE leases_fence RENAME TO gone")
        try:
            code, out, _ = leases("doctor")
        finally:
            cursor.execute("ALTER TABLE gone RENAME TO leases_fence")
    assert code == 1
    assert "leases.E043: default lacks table leases_fence" in out


def test_doctor_names_a_function_that_the_role_may_not_execute() -> None:
    role = "may_not_present"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {role} IN ROLE pg_read_all_data, pg_read_all_settings")
        cursor.execute(f"REVOKE EXECUTE ON FUNCTION {signature(PRESENT)} FROM PUBLIC")
        try:
            cursor.execute(f"SET ROLE {role}")
            code, out, _ = leases("doctor")
            cursor.execute("RESET ROLE")
            [hint] = [line for line in out.splitlines() if "GRANT EXECUTE" in line]
            cursor.execute(hint.strip().removeprefix("Execute: "))
            cursor.execute(f"SET ROLE {role}")
            assert "leases.E044" not in leases("doctor")[1]
        finally:
            cursor.execute("RESET ROLE")
            cursor.execute(f"GRANT EXECUTE ON FUNCTION {signature(PRESENT)} TO PUBLIC")
            cursor.execute(f"DROP OWNED BY {role}")
            cursor.execute(f"DROP ROLE {role}")
    assert code == 1
    assert "leases.E044" in out


def test_doctor_names_a_database_that_forgot() -> None:
    from leases import forgetting

    with hold("customer:1"):
        pass
    with connection.cursor() as cursor:
        cursor.execute("UPDATE leases_databaseidentity SET timeline = timeline - 1")
    connection.close()
    code, out, _ = leases("doctor")
    assert code == 1
    assert "leases.E041" in out
    forgetting.put_right("default")
    assert "leases.E041" not in leases("doctor")[1]
