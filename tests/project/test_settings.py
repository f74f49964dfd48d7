"""The settings under different environments, each in a process of its own."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.servers.redis_server import PrivateRedis

BASE_DIR = Path(__file__).resolve().parents[2]
PRODUCTION = {
    "SECRET_KEY": "0123456789abcdefghijklmnopqrstuvwxyz-0123456789-abcdefghij",
    "ALLOWED_HOSTS": "billing.example.org",
    "DATABASE_URL": "postgresql://127.0.0.1:1/none",
    "REDIS_URL": "redis://127.0.0.1:1/0",
}


def manage(*arguments: str, env: Mapping[str, str], file: str = "/dev/null") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=BASE_DIR,
        env={"ENV_FILE": file, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


def setting(name: str, env: Mapping[str, str], file: str = "/dev/null") -> Any:
    """Return a setting as a process with this environment sees it."""
    script = (
        "import json, sys; from django.conf import settings; print(json.dumps(getattr(settings, sys.argv[1]), "
        "default=str))"
    )
    completed = subprocess.run(
        [sys.executable, "-c", script, name],
        cwd=BASE_DIR,
        env={"DJANGO_SETTINGS_MODULE": "project.settings", "ENV_FILE": file, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


@pytest.mark.parametrize("missing", ["SECRET_KEY", "DATABASE_URL", "REDIS_URL"])
def test_production_does_not_start_without(missing: str) -> None:
    completed = manage("check", env={name: value for name, value in PRODUCTION.items() if name != missing})
    assert completed.returncode == 1
    assert completed.stderr.startswith(f"manage.py: {missing} is not set: ")
    assert completed.stderr.count("\n") == 1


def test_production_passes_the_deployment_checks(redis_server: PrivateRedis) -> None:
    env = {**PRODUCTION, "REDIS_URL": redis_server.url}
    completed = manage("check", "--deploy", "--fail-level", "WARNING", env=env)
    assert completed.returncode == 0, completed.stderr


def test_debug_is_off_unless_asked_for() -> None:
    assert setting("DEBUG", PRODUCTION) is False
    assert setting("DEVSERVICES", PRODUCTION) == []


def test_environment_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("".join(f"{name}={value}\n" for name, value in PRODUCTION.items()) + "EMAIL_PORT=2525\n")
    assert setting("EMAIL_PORT", {}, str(file)) == 2525
    assert setting("EMAIL_PORT", {"EMAIL_PORT": "26"}, str(file)) == 26


def test_leases_may_have_their_own_server_apart_from_the_brokers() -> None:
    env = {**PRODUCTION, "LEASES_REDIS_URL": "redis://leases:6379/0", "BROKER_URL": "redis://broker:6379/0"}
    assert setting("CACHES", env)["leases"]["LOCATION"] == "redis://leases:6379/0"
    assert setting("BROKER_URL", env) == "redis://broker:6379/0"


@pytest.mark.parametrize("ttl", [60, 6, 1])
def test_leases_redis_answers_or_fails_within_a_third_of_a_lease(ttl: int) -> None:
    options = setting("CACHES", {**PRODUCTION, "LEASES_TTL_SECONDS": str(ttl)})["leases"]["OPTIONS"]
    assert options["SOCKET_CONNECT_TIMEOUT"] + options["SOCKET_TIMEOUT"] <= ttl / 3


def test_valkey_scheme_is_refused_in_one_sentence() -> None:
    completed = manage("check", env={**PRODUCTION, "REDIS_URL": "valkey://127.0.0.1:6379/0"})
    assert completed.returncode == 1
    assert "write redis://" in completed.stderr
    assert completed.stderr.count("\n") == 1


def test_unknown_broker_is_refused_in_one_sentence() -> None:
    completed = manage("check", env={**PRODUCTION, "BROKER_URL": "kafka://127.0.0.1"})
    assert completed.returncode == 1
    assert completed.stderr.startswith("manage.py: The broker's URL begins with 'kafka'")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("LEASES_TTL_SECONDS", value) for value in ("abc", "-3", "0", "nan", "inf", "1e300")),
        *((f"{name}_SECONDS", "-3") for name in ("LEASES_MAX_HOLD", "BILLING_TAX_TIMEOUT", "EMAIL_TIMEOUT")),
    ],
)
def test_seconds_that_are_none_are_refused_by_the_name_of_the_variable_and_of_the_setting(
    name: str, value: str
) -> None:
    completed = manage("check", env={**PRODUCTION, name: value})
    assert completed.returncode == 1
    assert completed.stderr == (
        f"manage.py: {name}, from which the setting {name.removesuffix('_SECONDS')} comes, is {value!r}: write a "
        "number of seconds above zero, as in 60.\n"
    )


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("HTTPS", "enabled", "write on or off"),
        ("EMAIL_USE_TLS", "starttls", "write on or off"),
        ("EMAIL_PORT", "smtp", "write a whole number, as in 25"),
        ("BILLING_TAX_LINES_PER_REQUEST", "-1", "write a whole number, as in 100"),
        ("LOG_LEVEL", "LOUD", "write DEBUG, INFO, WARNING, ERROR or CRITICAL"),
    ],
)
def test_value_that_is_none_is_refused_in_one_sentence(name: str, value: str, advice: str) -> None:
    completed = manage("check", env={**PRODUCTION, name: value})
    assert completed.returncode == 1
    assert completed.stderr == f"manage.py: {name} is {value!r}: {advice}.\n"


def test_blank_after_a_comma_belongs_to_no_name() -> None:
    assert setting("ALLOWED_HOSTS", {**PRODUCTION, "ALLOWED_HOSTS": "a.example.org, b.example.org,"}) == [
        "a.example.org",
        "b.example.org",
    ]


def test_alert_that_could_not_be_mailed_to_an_operator_is_found_beforehand(redis_server: PrivateRedis) -> None:
    env = {**PRODUCTION, "REDIS_URL": redis_server.url, "ALERT_EMAILS": "ops@example.org, night-shift"}
    completed = manage("check", env=env)
    assert completed.returncode == 1
    assert "(project.E003) ALERT_EMAILS names 'night-shift', to which no mail can be sent" in completed.stderr


def test_every_variable_is_in_the_example() -> None:
    source = (BASE_DIR / "project/settings.py").read_text()
    read = set(re.findall(r'(?:env\.\w+|required|seconds|switch|whole|listed)\(\s*"([A-Z_]+)"', source))
    listed = set(re.findall(r"^#?([A-Z_]+)=", (BASE_DIR / ".env.example").read_text(), re.MULTILINE))
    assert len(read) > 20
    assert read == listed
