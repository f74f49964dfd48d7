"""How a drainer is stopped; and that a reader of its output who has gone away changes nothing."""

import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection

from outbox import drain
from outbox.channels.base import Answer, Deadline, Outcome, Parcel
from outbox.claims import Statements
from outbox.drain import Drainer, Until
from outbox.models import Decision, Message, State
from outbox.senders import Senders
from tests.servers.processes import BASE_DIR, Processes
from tests.waiting import wait_until

from .conftest import drainer
from .odd_channels import OddChannel
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


def test_signal_that_comes_in_the_middle_of_the_one_before_is_taken() -> None:
    """At whatever line of stop(): a lock taken there would be waited for by its own thread."""

    def stop_twice(stopped: Drainer, line: int) -> None:
        left = line

        def on_line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                stopped.stop()
            return on_line

        sys.settrace(on_line)
        stopped.stop()
        sys.settrace(None)

    for line in range(1, 30):
        thread = threading.Thread(target=stop_twice, args=[drainer(), line], daemon=True)
        thread.start()
        thread.join(30)
        if thread.is_alive():
            faulthandler.dump_traceback()
        assert not thread.is_alive(), line


def test_drainer_that_waits_for_its_database_and_has_nothing_in_hand_ends_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object) -> None:
        raise OperationalError("the server is away")

    monkeypatch.setattr(drain, "FIRST_BACKOFF", 30.0)
    monkeypatch.setattr(drain, "LONGEST_BACKOFF", 30.0)
    monkeypatch.setattr(Statements, "sweep", fail)
    waiting = drainer(until=Until.STOPPED)

    def run() -> None:
        waiting.run()
        connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: "the server is away" in caplog.text)
    waiting.stop()
    thread.join(10)  # its wait would be of 15 s at least
    ended = not thread.is_alive()
    thread.join(60)
    assert ended


def test_threads_that_hang_are_waited_for_together() -> None:
    goes_on = threading.Event()

    class Stuck(OddChannel):
        def send(self, parcel: Parcel) -> Answer:
            goes_on.wait(20)
            return Answer(Outcome.ACCEPTED)

    senders = Senders(lambda: Stuck("odd"), 8, 1, lambda: False, lambda answered: None)
    for number in range(8):
        senders.hand(1, [Parcel(number, "odd", "k", {}, 1, Deadline.after(60))])
    began = time.monotonic()
    senders.close(0.25)
    took = time.monotonic() - began
    goes_on.set()
    wait_until(lambda: not any(thread.name.startswith("outbox-sender") for thread in threading.enumerate()))
    assert took < 1


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
