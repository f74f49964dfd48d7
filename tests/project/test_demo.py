"""`manage.py demo` from nothing, on development servers of its own."""

import os
import signal
import subprocess

import psutil

from tests.project.checkouts import CheckoutCopy
from tests.waiting import wait_until


def demo(checkout: CheckoutCopy) -> subprocess.Popen[str]:
    return subprocess.Popen(
        checkout.command("demo", "--customers", "10"),
        cwd=checkout.folder,
        env=checkout.environment({"PYTHONUNBUFFERED": "1"}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def started_processes(checkout: CheckoutCopy) -> list[psutil.Process]:
    """Return what runs in the checkout's folder; its servers run elsewhere."""
    found = []
    for process in psutil.process_iter(["cwd", "status"]):
        if process.info["cwd"] == str(checkout.folder) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def test_demo_that_was_interrupted_is_finished_by_the_next(checkout: CheckoutCopy) -> None:
    first = demo(checkout)
    assert first.stdout
    lines = []
    for line in first.stdout:
        lines.append(line)
        if "enqueued" in line:
            first.send_signal(signal.SIGINT)
            break
    rest = first.communicate(timeout=60)[0]
    assert first.returncode == 130, "".join(lines) + rest
    assert "manage.py devservices down" in rest
    wait_until(lambda: not started_processes(checkout))

    second = demo(checkout)
    output = second.communicate(timeout=180)[0]
    assert second.returncode == 0, output
    assert "2026-05: 10 invoices and 10 emails" in output
    assert "0 more invoices, 0 more emails" in output
    assert "NOT AS PROMISED" not in output
    wait_until(lambda: not started_processes(checkout))
    assert set(checkout.pids()) == {"postgres", "valkey"}


def test_demo_leaves_no_process_behind_when_it_is_killed(checkout: CheckoutCopy) -> None:
    killed = demo(checkout)
    assert killed.stdout
    next(line for line in killed.stdout if "importing" in line)
    assert len(started_processes(checkout)) > 4
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=60)
    wait_until(lambda: not started_processes(checkout), timeout=30)
