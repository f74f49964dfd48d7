"""The suite's own tools keep their word: processes see the test's data and die with the test."""

import os

import psutil
import pytest
import redis
from django.contrib.auth.models import User
from django_redis import get_redis_connection
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers.processes import Processes
from tests.servers.redis_server import PrivateRedis
from tests.waiting import wait_until

SHOW = (
    "from django.contrib.auth.models import User; from django_redis import get_redis_connection;"
    "print('sees', User.objects.get().username, get_redis_connection('leases').get('mark'), flush=True);"
    "import time; time.sleep(600)"
)


def test_process_sees_rows_and_keys_of_the_test(processes: Processes) -> None:
    User.objects.create(username="ada")
    get_redis_connection("leases").set("mark", "here")
    shell = processes.start("shell", "-v0", "-c", SHOW)
    assert shell.wait_for_line(r"^sees (.*)$")[1] == "ada b'here'"


def test_workers_die_with_their_command(processes: Processes) -> None:
    workers = processes.start("rundramatiq", "--processes", 2, "--threads", 1)
    wait_until(lambda: len(workers.children()) >= 2)
    children = workers.children()
    workers.kill()
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)


def test_rundramatiq_hands_signals_on(processes: Processes) -> None:
    workers = processes.start("rundramatiq", "--processes", 1, "--threads", 1)
    workers.wait_for_line("Worker process is ready for action")
    workers.terminate()
    assert workers.wait() == 0


def test_frozen_process_goes_on_after_thaw(processes: Processes) -> None:
    shell = processes.start("shell", "-v0", "-c", "import time\nwhile True: print('tick', flush=True); time.sleep(.01)")
    shell.wait_for_line("^tick$")
    shell.freeze()
    wait_until(lambda: psutil.Process(shell.pid).status() == psutil.STATUS_STOPPED)
    frozen_at = len(shell.output())
    assert len(shell.output()) == frozen_at
    shell.thaw()
    wait_until(lambda: len(shell.output()) > frozen_at)


def test_process_that_ends_early_is_not_waited_for(processes: Processes) -> None:
    shell = processes.start("shell", "-v0", "-c", "print('bye')")
    with pytest.raises(AssertionError, match="ended with 0 before"):
        shell.wait_for_line("never", timeout=30)


def test_private_redis_forgets_freezes_and_comes_back(redis_server: PrivateRedis) -> None:
    assert redis_server.url != os.environ["REDIS_URL"]
    client = redis_server.client()
    client.set("kept", "1")
    first = client.info("server")["run_id"]
    redis_server.restart()
    client = redis_server.client()
    assert client.get("kept") == "1"
    assert client.info("server")["run_id"] != first
    redis_server.flushall()
    assert client.get("kept") is None
    client.set("kept", "2")
    redis_server.restart(forget=True)
    assert redis_server.client().get("kept") is None
    redis_server.pause()
    wait_until(lambda: not answers(redis_server))
    redis_server.resume()
    wait_until(lambda: answers(redis_server))


def answers(server: PrivateRedis) -> bool:
    try:
        with redis.Redis(port=server.port, socket_timeout=0.1, retry=Retry(NoBackoff(), 0)) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False
