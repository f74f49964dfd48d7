"""One test per check id; where the hint is something to type, it is typed, and the check is content."""

import itertools
import re
from datetime import timedelta
from io import StringIO
from typing import Any, cast

import dramatiq
import pgtrigger
import pytest
from django.core.checks import CheckMessage
from django.core.management import call_command
from django.db import connection, models
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import CurrentMessage, TimeLimit

from leases import leased
from leases.checks import databases, redis_server
from leases.checks import settings as settings_checks
from leases.models import LeaseRecord
from tests.leases.test_fenced import sql
from tests.ledger.models import Entry

pytestmark = pytest.mark.django_db(transaction=True)


_numbers = itertools.count(1)


def ids(messages: list[CheckMessage]) -> list[str | None]:
    for message in messages:
        assert message.hint, f"{message.id} has no hint"
    return [message.id for message in messages]


# Settings


@pytest.mark.parametrize(("name", "value"), [("TTL", 60), ("MAX_HOLD", timedelta(0)), ("LOCK_DELAY", -timedelta(1))])
def test_E010_setting_that_is_no_duration(settings: Any, name: str, value: Any) -> None:
    setattr(settings, f"LEASES_{name}", value)
    assert ids(settings_checks.durations()) == ["leases.E010"]


def test_E011_ttl_longer_than_allowed(settings: Any) -> None:
    settings.LEASES_LOCK_DELAY = timedelta(hours=1)
    assert ids(settings_checks.durations()) == ["leases.E011"]


@pytest.mark.parametrize("cache", [None, {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}])
def test_E012_no_client_for_leases(settings: Any, cache: Any) -> None:
    settings.LEASES_REDIS_ALIAS = "other"
    settings.CACHES = {**settings.CACHES, **({"other": cache} if cache else {})}
    assert ids(settings_checks.redis_client()) == ["leases.E012"]


def test_E012_address_that_is_no_url(settings: Any) -> None:
    other_redis(settings, "127.0.0.1:6379")
    [message] = settings_checks.redis_client()
    assert message.id == "leases.E012"
    assert "must specify one of the following schemes" in message.msg


def test_W018_setting_that_is_none(settings: Any) -> None:
    assert settings_checks.names() == []
    settings.LEASES_TLL = timedelta(seconds=30)
    [message] = settings_checks.names()
    assert message.id == "leases.W018"
    assert "LEASES_TLL" in message.msg
    assert "LEASES_TTL" in str(message.hint)


@pytest.mark.parametrize(
    "options",
    [{"SOCKET_CONNECT_TIMEOUT": 11, "SOCKET_TIMEOUT": 11}, {"CONNECTION_POOL_KWARGS": {"socket_timeout": None}}],
)
def test_E013_socket_timeouts_not_below_a_third_of_the_ttl(settings: Any, options: dict[str, Any]) -> None:
    other_redis(settings, **options)
    [message] = settings_checks.redis_client()
    assert message.id == "leases.E013"
    suggested = re.search(r"at most (\S+) each", str(message.hint))
    assert suggested
    other_redis(settings, SOCKET_CONNECT_TIMEOUT=float(suggested[1]), SOCKET_TIMEOUT=float(suggested[1]))
    assert settings_checks.redis_client() == []


def other_redis(settings: Any, url: str | None = None, **options: Any) -> None:
    """Have the leases use another client from here on."""
    number = next(_numbers)
    alias = f"other{number}"
    # Another database each time, since django-redis gives all clients of one URL the same connections.
    location = url or settings.CACHES["leases"]["LOCATION"].rpartition("/")[0] + f"/{number}"
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}
    settings.CACHES = {**settings.CACHES, alias: cache}
    settings.LEASES_REDIS_ALIAS = alias


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> StubBroker:
    """The broker of the process, with a leased actor and one that is not."""
    stub = StubBroker(middleware=[CurrentMessage(), TimeLimit(time_limit=3_600_000)])
    monkeypatch.setattr("dramatiq.broker.global_broker", stub)
    dramatiq.actor(actor_name="quick", broker=stub, time_limit=1000)(lambda: None)
    return stub


def declare(broker: StubBroker, **options: Any) -> None:
    @dramatiq.actor(broker=broker, **options)
    @leased("account:{account_id}")
    def book(account_id: int) -> None: ...


def test_E014_time_limit_below_the_longest_hold(broker: StubBroker, settings: Any) -> None:
    # outbox B57
    declare(broker)
    assert settings_checks.dramatiq_limits() == []
    settings.LEASES_MAX_HOLD = timedelta(hours=2)
    [message] = settings_checks.dramatiq_limits()
    assert (message.id, message.obj) == ("leases.E014", "book")


def test_E014_time_limit_of_the_actor_counts(broker: StubBroker) -> None:
    declare(broker, time_limit=60_000)
    assert ids(settings_checks.dramatiq_limits()) == ["leases.E014"]


def test_E015_broker_that_cannot_put_messages_back(broker: StubBroker) -> None:
    declare(broker)
    broker.middleware.remove(next(one for one in broker.middleware if isinstance(one, CurrentMessage)))
    assert ids(settings_checks.dramatiq_limits()) == ["leases.E015"]


def test_W016_atomic_requests(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    assert settings_checks.atomic_requests() == []
    monkeypatch.setitem(settings.DATABASES["default"], "ATOMIC_REQUESTS", True)
    assert ids(settings_checks.atomic_requests()) == ["leases.W016"]


def test_E017_without_pgtrigger_the_triggers_of_fenced_models_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_checks.trigger_app() == []
    # Not by overriding INSTALLED_APPS: every app would get ready again, and set another broker.
    monkeypatch.setattr("leases.checks.settings.apps.is_installed", lambda name: name != "pgtrigger")
    assert ids(settings_checks.trigger_app()) == ["leases.E017"]


# PostgreSQL


def database_checks() -> list[CheckMessage]:
    return [message for message in databases.fences(["default"]) if message.id != "leases.W024"]


def type_command(hint: str) -> None:
    """Type what a hint says."""
    words = hint.removeprefix("Type: manage.py ").split()
    call_command(*words, stdout=StringIO())


def trigger_name(uri: str) -> str:
    [(_, trigger)] = pgtrigger.registered(uri)
    pgid: str = trigger.get_pgid(cast(Any, Entry))
    return pgid


def test_nothing_is_asked_unless_a_database_is_named(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        assert databases.fences() == []


def test_E020_database_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "PORT", "1")
    assert ids(databases.fences(["default"])) == ["leases.E020"]


def test_E021_missing_trigger() -> None:
    name = trigger_name("ledger.Entry:fence_update")
    sql(f"DROP TRIGGER {name} ON ledger_entry")
    [message] = database_checks()
    assert message.id == "leases.E021"
    type_command(str(message.hint))
    assert database_checks() == []


def test_E021_trigger_of_another_version() -> None:
    name = trigger_name("ledger.Entry:fence_update")
    sql(f"COMMENT ON TRIGGER {name} ON ledger_entry IS 'older'")
    [message] = database_checks()
    assert message.id == "leases.E021"
    type_command(str(message.hint))
    assert database_checks() == []


@pytest.mark.parametrize("state", ["DISABLE TRIGGER", "ENABLE REPLICA TRIGGER"])
def test_E022_disabled_trigger(state: str) -> None:
    name = trigger_name("ledger.Entry:fence_delete")
    sql(f"ALTER TABLE ledger_entry {state} {name}")
    [message] = database_checks()
    assert message.id == "leases.E022"
    type_command(str(message.hint))
    assert database_checks() == []


def test_E023_partition_without_triggers() -> None:
    sql('CREATE TABLE "ledger_entry of ""2026""" () INHERITS (ledger_entry)')
    try:
        [message] = database_checks()
        assert message.id == "leases.E023"
        sql(str(message.hint).removeprefix("Execute: "))
        assert database_checks() == []
        with pytest.raises(Exception, match="not presented: account:1"):
            sql('INSERT INTO "ledger_entry of ""2026""" VALUES (1, 1, 1, \'\', 1)')
    finally:
        sql('DROP TABLE "ledger_entry of ""2026"""')


def test_W026_trigger_of_a_former_name_of_the_model() -> None:
    name = trigger_name("ledger.Entry:fence_delete")
    sql(f"CREATE TRIGGER pgtrigger_fence_delete_former BEFORE DELETE ON ledger_entry EXECUTE FUNCTION {name}()")
    [message] = database_checks()
    assert message.id == "leases.W026"
    sql(str(message.hint).removeprefix("Execute: "))
    assert database_checks() == []


def test_pending_migration_silences_what_it_will_put_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """`migrate` runs these checks first, and must not be refused for what it is about to do."""
    name = trigger_name("ledger.Entry:fence_update")
    sql(f"ALTER TABLE ledger_entry DISABLE TRIGGER {name}")
    try:
        monkeypatch.setattr(databases, "pending_apps", lambda connection: {"ledger"})
        assert database_checks() == []
    finally:
        sql(f"ALTER TABLE ledger_entry ENABLE TRIGGER {name}")


def test_W024_transactions_may_idle_for_ever() -> None:
    [message] = [message for message in databases.fences(["default"]) if message.id == "leases.W024"]
    sql(str(message.hint).removeprefix("Execute: "))
    try:
        connection.close()
        assert ids(databases.fences(["default"])) == []
    finally:
        sql(f'ALTER ROLE "{connection.settings_dict["USER"]}" RESET idle_in_transaction_session_timeout')
        connection.close()


def test_W025_headroom_is_thin() -> None:
    LeaseRecord.objects.create(
        resource="account:1",
        token=1,
        ttl_ms=1000,
        pid=1,
        acquired_at="2026-05-01T00:00:00Z",
        ended_at="2026-05-01T00:00:05Z",
        end="released",
    )
    LeaseRecord.objects.update(
        acquired_at=models.functions.Now() - timedelta(seconds=5), ended_at=models.functions.Now()
    )
    [message] = database_checks()
    assert (message.id, message.obj) == ("leases.W025", "account")


# Redis


def redis_checks() -> list[CheckMessage]:
    return [message for message in redis_server.redis_server() if message.id != "leases.W034"]


def test_E030_redis_that_does_not_answer(settings: Any) -> None:
    other_redis(settings, "redis://127.0.0.1:1/0", SOCKET_CONNECT_TIMEOUT=0.2)
    assert ids(redis_server.redis_server()) == ["leases.E030"]


def test_E031_version_that_is_too_old() -> None:
    assert ids(list(redis_server._version({"redis_version": "6.2.14"}))) == ["leases.E031"]
    assert list(redis_server._version({"redis_version": "7.0.15"})) == []


@pytest.fixture
def own_redis(redis_server: Any, settings: Any) -> Any:
    """A server of this test's own, used for the leases."""
    other_redis(settings, redis_server.url)
    return redis_server.client()


def test_E032_replica_behind_the_leases(own_redis: Any) -> None:
    assert redis_checks() == []
    own_redis.replicaof("127.0.0.1", "1")
    [message] = redis_checks()
    assert message.id == "leases.E032"
    assert "127.0.0.1:1" in str(message.hint)


def test_E033_policy_that_evicts(own_redis: Any) -> None:
    own_redis.config_set("maxmemory-policy", "allkeys-lru")
    [message] = redis_checks()
    assert message.id == "leases.E033"
    typed = str(message.hint).split("redis-cli ")[1].split(",")[0]
    own_redis.execute_command(*typed.split())
    assert redis_checks() == []


def test_W034_nothing_kept_on_disk(own_redis: Any) -> None:
    own_redis.config_set("appendonly", "no")
    own_redis.config_set("save", "")
    [message] = redis_server.redis_server()
    assert message.id == "leases.W034"
    typed = str(message.hint).split("redis-cli ")[1].split(",")[0]
    own_redis.execute_command(*typed.split())
    assert redis_server.redis_server() == []


def test_E035_broker_and_leases_on_one_server_that_evicts(
    own_redis: Any, redis_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dramatiq.broker.global_broker", RedisBroker(url=redis_server.url))
    assert redis_checks() == []
    own_redis.config_set("maxmemory-policy", "volatile-ttl")
    assert ids(redis_checks()) == ["leases.E033", "leases.E035"]
