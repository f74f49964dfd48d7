"""A name server that answers nothing must not hold a message longer than its claim."""

import json
import shutil
import socket
import subprocess
import sys
import threading

import pytest

from outbox.channels import lookups

ISOLATED = ["unshare", "--map-root-user", "--mount", "--net"]


def may_isolate() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*ISOLATED, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not may_isolate(), reason="this system does not let us have a network of our own")
def test_name_server_that_is_silent_holds_mail_and_webhook_only_as_long_as_their_timeouts() -> None:
    command = [*ISOLATED, sys.executable, "-m", "tests.outbox.silent_resolver"]
    # One look-up takes the system 90 s.
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    *answers, threads = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer[:3] for answer in answers] == [
        [name, "not handed over", True] for name in ("email", "hook") for _ in range(3)
    ]
    assert all("look-up of" in answer[3] for answer in answers), answers
    # Three attempts at each of two hosts left one hanging look-up per host, not per attempt.
    assert 1 <= threads.count("look-up") <= 2, threads


def test_who_asks_for_a_name_that_is_being_looked_up_waits_for_the_same_answer() -> None:
    asked, answering = [], threading.Event()

    def look_up() -> str:
        asked.append(1)
        answering.wait(20)
        return "found"

    for _ in range(3):
        with pytest.raises(TimeoutError, match="look-up of name took longer"):
            lookups.bounded(("test", "name"), look_up, 0.01)
    answering.set()
    assert lookups.bounded(("test", "name"), look_up, 20) == "found"
    assert len(asked) <= 2  # the second only if the first was through when we came


def test_name_that_does_not_exist_is_said_as_the_system_says_it() -> None:
    def look_up() -> None:
        raise socket.gaierror(-2, "Name or service not known")

    with pytest.raises(socket.gaierror, match="not known"):
        lookups.bounded(("test", "other name"), look_up, 20)


def test_look_up_for_which_there_was_no_thread_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError):
            lookups.bounded(("test", "third name"), lambda: "found", 20)
    assert lookups.bounded(("test", "third name"), lambda: "found", 20) == "found"
