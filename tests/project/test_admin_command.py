"""`manage.py admin`: a development user, on this machine only."""

import re
import socket
from functools import partial
from typing import Any

import httpx
import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import CommandError

from tests.servers.processes import Processes
from tests.waiting import wait_until


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 302
    except httpx.ConnectError:
        return False


def log_in(url: str, password: str) -> str:
    """Return the page that follows the login."""
    with httpx.Client(follow_redirects=True) as client:
        form = client.get(url).text
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', form)
        assert token
        data = {"username": "developer", "password": password, "csrfmiddlewaretoken": token[1], "next": "/admin/"}
        return client.post(f"{url}login/", data=data).text


def test_admin_lets_in_who_has_the_printed_password_of_this_start(processes: Processes) -> None:
    passwords = []
    for _ in range(2):
        port = free_port()
        process = processes.start("admin", "--port", port, env={"DEBUG": "on"})
        passwords.append(process.wait_for_line(r"user developer, password (\S+)", 60)[1])
        assert "make demo" in process.wait_for_line("Nothing was billed.*")[0]
        url = f"http://127.0.0.1:{port}/admin/"
        wait_until(partial(answers, url), timeout=60)
        assert "Waits for a person" in log_in(url, passwords[-1])
        with pytest.raises(httpx.ConnectError):
            httpx.get(url.replace("127.0.0.1", "127.0.0.2"))
    assert "Please enter the correct username and password" in log_in(url, passwords[0])
    assert User.objects.count() == 1


def test_admin_is_for_development() -> None:
    with pytest.raises(CommandError, match="DEBUG=on"):
        call_command("admin")


def test_taken_port_is_refused_before_the_password_of_the_running_admin_is_changed(settings: Any) -> None:
    settings.DEBUG = True
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(CommandError, match="Address already in use"):
            call_command("admin", "--port", str(taken.getsockname()[1]))
