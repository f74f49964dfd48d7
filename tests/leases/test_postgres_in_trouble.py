"""PostgreSQL restarted, failed over, behind a pooler, and with clients that stopped reading."""

import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, OperationalError, connection, connections, transaction
from django_redis import get_redis_connection

from leases import fence, forgetting, hold
from leases.errors import DatabaseForgot, LeaseLost, LeaseUnavailable, NotHeld, StaleToken
from leases.models import Fence, LeaseRecord
from leases.resources import key_of
from project.devservices.postgres import PostgresServer
from tests.leases import other_database
from tests.leases.conftest import steal
from tests.leases.other_database import ALIAS
from tests.leases.threads import in_thread
from tests.ledger.models import Account, Entry
from tests.servers.needs import PROGRAMS
from tests.servers.plugin import SCRATCH
from tests.servers.scratch import Scratch
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def scratch(pytestconfig: pytest.Config) -> Scratch:
    return pytestconfig.stash[SCRATCH]


@pytest.fixture
def server(scratch: Scratch, tmp_path: Path, django_db_blocker: Any) -> Iterator[PostgresServer]:
    """A server of this test's own, migrated, under the alias `other`."""
    server = other_database.new_server(scratch, f"postgres-{tmp_path.name}")
    server.start()
    assert server.port
    with django_db_blocker.unblock(), other_database.reached_at(server.port):
        other_database.migrate()
        yield server
    server.stop()


@pytest.fixture
def other_account(server: PostgresServer) -> Account:
    return Account.objects.using(ALIAS).create(name="Bob")


def test_lease_on_one_database_does_not_open_the_other(other_account: Account) -> None:
    resource = f"account:{other_account.pk}"
    with hold(resource), pytest.raises(NotHeld):
        Entry.objects.using(ALIAS).create(account=other_account)
    with hold(resource, using=ALIAS):
        Entry.objects.using(ALIAS).create(account=other_account)


def test_restart_in_mid_job_fails_the_write_and_not_the_lease(server: PostgresServer, other_account: Account) -> None:
    resource = f"account:{other_account.pk}"
    with pytest.raises(DatabaseError), hold(resource, using=ALIAS) as lease:
        restart(server)
        Entry.objects.using(ALIAS).create(account=other_account)
    assert LeaseRecord.objects.using(ALIAS).get(token=lease.token).end == LeaseRecord.End.RELEASED
    with hold(resource, using=ALIAS):
        Entry.objects.using(ALIAS).create(account=other_account)
    assert Entry.objects.using(ALIAS).count() == 1


def test_stopped_database_is_unavailable_and_gives_the_key_back(server: PostgresServer, redis: Any) -> None:
    server.stop()
    with pytest.raises(LeaseUnavailable), hold("customer:1", using=ALIAS):
        pass
    assert redis.dbsize() == 0


def restart(server: PostgresServer) -> None:
    port = server.port
    server.stop()
    server.start()
    assert server.port == port


def test_promoted_replica_that_missed_a_takeover_leases_nothing_until_put_right(
    server: PostgresServer, other_account: Account, scratch: Scratch, tmp_path: Path
) -> None:
    resource = f"account:{other_account.pk}"
    with pytest.raises(LeaseLost), hold(resource, using=ALIAS) as lost:
        replica = other_database.new_server(scratch, f"replica-{tmp_path.name}")
        replica.home.mkdir(mode=0o755, exist_ok=True)
        if scratch.account:
            shutil.chown(replica.home, scratch.account.uid, scratch.account.gid)
        other_database.base_backup(server, scratch, replica.data)
        # The takeover that the replica will not know of.
        steal(resource, using=ALIAS)
        server.stop()
        start_standby_and_promote(replica, scratch)
        assert replica.port
        try:
            with other_database.reached_at(replica.port):
                assert Fence.objects.using(ALIAS).get(resource=resource).token == lost.token
                with pytest.raises(DatabaseForgot), hold("customer:2", using=ALIAS):
                    pass
                forgetting.put_right(ALIAS)
                with hold("customer:2", using=ALIAS):
                    pass
                # The holder that was replaced on the old server presents a token that no fence knows any more.
                with pytest.raises(StaleToken):
                    Entry.objects.using(ALIAS).create(account=other_account)
                assert Entry.objects.using(ALIAS).count() == 0
        finally:
            replica.stop()


def dump_and_restore(server: PostgresServer, folder: Path) -> None:
    def run(tool: str, *arguments: str) -> None:
        program = server._binaries.postgres.with_name(tool)
        where = ["-h", "127.0.0.1", "-p", str(server.port), "-U", "postgres"]
        subprocess.run([program, *where, *arguments], check=True, capture_output=True)

    run("pg_dump", "-Fc", "-f", str(folder / "dump"), server.database)
    connections[ALIAS].close()
    run("dropdb", "--force", server.database)
    run("createdb", server.database)
    run("pg_restore", "-d", server.database, str(folder / "dump"))


def copy_as_template(server: PostgresServer, folder: Path) -> None:
    connections[ALIAS].close()
    where = f"host=127.0.0.1 port={server.port} user=postgres dbname=postgres"
    with psycopg.connect(where, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE copied TEMPLATE {server.database}")
        admin.execute(f"DROP DATABASE {server.database} WITH (FORCE)")
        admin.execute(f"ALTER DATABASE copied RENAME TO {server.database}")


@pytest.mark.parametrize("restore", [dump_and_restore, copy_as_template])
def test_backup_restored_on_the_same_server_leases_nothing_until_put_right(
    server: PostgresServer, tmp_path: Path, restore: Callable[[PostgresServer, Path], None]
) -> None:
    with hold("customer:1", using=ALIAS):
        pass
    restore(server, tmp_path)
    with pytest.raises(DatabaseForgot), hold("customer:1", using=ALIAS):
        pytest.fail("leased on a restored database that may have lost its fences")
    assert forgetting.put_right(ALIAS) == 1
    with hold("customer:1", using=ALIAS):
        pass


def start_standby_and_promote(replica: PostgresServer, scratch: Scratch) -> None:
    signal = replica.data / "standby.signal"
    signal.touch()
    if scratch.account:
        shutil.chown(signal, scratch.account.uid, scratch.account.gid)
    super(PostgresServer, replica).start()
    with psycopg.connect(f"postgresql://postgres@127.0.0.1:{replica.port}/postgres", autocommit=True) as connection:
        connection.execute("SELECT pg_promote(true, 30)")
        wait_until(lambda: connection.execute("SELECT NOT pg_is_in_recovery()").fetchone() == (True,))


def test_holder_that_stopped_reading_in_mid_result_does_not_hold_up_its_successor(
    account: Account, resource: str
) -> None:
    """A process frozen while the server writes to it is active, not idle: no idle timeout ends it."""
    reading, taken = threading.Event(), threading.Event()

    def frozen() -> None:
        token = steal(resource)
        with pytest.raises(OperationalError), transaction.atomic():
            fence.present(resource, token, ttl_ms=60_000, using="default")
            with connection.cursor() as cursor:
                try:
                    rows = cursor.cursor.stream("SELECT repeat('x', 100000) FROM generate_series(1, 100000)")
                    next(rows)
                    reading.set()
                    taken.wait(30)
                    list(rows)
                except psycopg.OperationalError as error:
                    raise OperationalError(str(error)) from error

    with in_thread(frozen, timeout_s=40):
        assert reading.wait(10)
        get_redis_connection("leases").delete(key_of(resource))
        try:
            with hold(resource, wait=timedelta(seconds=10)):
                pass
        finally:
            taken.set()


@pytest.mark.pgbouncer
def test_leases_and_fences_work_through_a_pooler_in_transaction_mode(  # locks L58
    server: PostgresServer, scratch: Scratch, tmp_path: Path
) -> None:
    # outbox A38
    assert server.port
    with Pooler(server, scratch, tmp_path) as port, other_database.reached_at(port):
        connections[ALIAS].settings_dict["DISABLE_SERVER_SIDE_CURSORS"] = True
        account = Account.objects.using(ALIAS).create(name="pooled")
        resource = f"account:{account.pk}"
        for _ in range(5):
            with hold(resource, using=ALIAS) as lease, lease.transaction():
                Entry.objects.using(ALIAS).create(account=account)
        with connections[ALIAS].cursor() as cursor:
            # Nothing of what was presented, and no limit, is left on the server connection for the next client.
            cursor.execute("SELECT current_setting('leases.presented', true), current_setting('lock_timeout')")
            presented, lock_timeout = cursor.fetchone()
        assert not presented
        assert lock_timeout == "0"
        with pytest.raises(LeaseLost), hold(resource, using=ALIAS):
            steal(resource, using=ALIAS)
            with pytest.raises(StaleToken):
                Entry.objects.using(ALIAS).create(account=account)
        assert Entry.objects.using(ALIAS).count() == 5


class Pooler:
    """A PgBouncer in transaction mode with two server connections."""

    def __init__(self, server: PostgresServer, scratch: Scratch, folder: Path) -> None:
        self.port = free_port()
        self.identity = scratch.account.identity if scratch.account else {}
        self.folder = scratch.folder / f"pgbouncer-{folder.name}"
        self.folder.mkdir(mode=0o755)
        (self.folder / "pgbouncer.ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port} user=postgres\n[pgbouncer]\nlisten_addr=127.0.0.1\n"
            f"listen_port={self.port}\nunix_socket_dir=\nauth_type=any\npool_mode=transaction\ndefault_pool_size=2\n"
            "ignore_startup_parameters=extra_float_digits\n"
        )

    def __enter__(self) -> int:
        executable = shutil.which("pgbouncer", path=PROGRAMS)
        assert executable
        self.process = subprocess.Popen([executable, str(self.folder / "pgbouncer.ini")], cwd="/", **self.identity)
        wait_until(lambda: answers(self.port))
        return self.port

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait(10)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def answers(port: int) -> bool:
    try:
        psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/{PostgresServer.database}", connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True
