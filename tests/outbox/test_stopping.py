"""How a drainer is stopped; and that a reader of its output who has gone away changes nothing."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from outbox.models import Decision, Message, State
from tests.servers.processes import BASE_DIR, Processes
from tests.waiting import wait_until

from .smtp_server import MailServer
from .test_drain import fill

pytestmark = pytest.mark.django_db(transaction=True)

Publish = Callable[..., Message]
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.mark.parametrize("hangups", [1, 2])
def test_terminal_that_closes_lets_the_drainer_finish_what_is_in_hand(
    hangups: int, processes: Processes, drainer_env: dict[str, str]
) -> None:
    fill(3)
    env = {**drainer_env, "OUTBOX_TEST_SEND_SECONDS": "3", "OUTBOX_TEST_CLAIM_SECONDS": "60"}
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, which the drainer honours
    try:
        process = processes.start("drain_outbox", "--watch", "--channel", "record", "--concurrency", "1", env=env)
    finally:
        signal.signal(signal.SIGHUP, inherited)
    wait_until(lambda: Message.objects.filter(state=State.SENDING).exists(), 30)
    for _ in range(hangups):  # from the kernel, and from the shell
        os.kill(process.pid, signal.SIGHUP)
    assert process.wait() == 0, process.output()
    # One that was declared and not begun yet goes back as well.
    assert set(Message.objects.values_list("state", "attempts")) <= {(State.PENDING, 0), (State.SENT, 1)}


def test_command_gives_the_signals_back_when_it_ends(mail_server: MailServer) -> None:
    before = [signal.getsignal(signum) for signum in SIGNALS]
    call_command("drain_outbox", "--until-empty")
    assert [signal.getsignal(signum) for signum in SIGNALS] == before


def test_command_can_be_called_in_a_thread(mail_server: MailServer, publish: Publish) -> None:
    publish()

    def run() -> None:
        call_command("drain_outbox", "--until-empty")
        connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    assert Message.objects.get().state == State.SENT


@pytest.mark.parametrize("redirect", ["| true", ">&-", "> /dev/full"])
def test_output_that_nobody_takes_leaves_the_exit_code_as_it_was(
    redirect: str, mail_server: MailServer, publish: Publish, processes: Processes, drainer_env: dict[str, str]
) -> None:
    publish()
    command = f"set -o pipefail; {sys.executable} manage.py drain_outbox --until-empty {redirect}"
    env: dict[str, Any] = {**processes.environment, **drainer_env}
    done = subprocess.run(
        ["bash", "-c", command], cwd=BASE_DIR, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
    assert done.returncode == 0
    assert Message.objects.get().state == State.SENT


def test_reason_that_is_no_text_is_kept_as_far_as_it_is(mail_server: MailServer, publish: Publish) -> None:
    publish()
    call_command("outbox", "cancel", "--reason", "full\udcff", "k")
    assert Decision.objects.get().reason == "full?"
