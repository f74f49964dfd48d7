import json
import logging
import logging.config
import socket
import sys

import pytest
from django.conf import settings

from project import logs


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.getLogger("leases").makeRecord("leases", logging.INFO, __file__, 1, message, (), None, extra=extra)
    assert logs.JobFilter().filter(made)
    return made


def test_json_line_carries_every_field_the_line_was_given() -> None:
    line = json.loads(
        logs.JsonFormatter().format(record("Lease lost", event="lease.lost", resource="customer:42", token=7))
    )
    assert (line["message"], line["event"], line["resource"], line["token"]) == (
        "Lease lost",
        "lease.lost",
        "customer:42",
        7,
    )
    assert line["time"].endswith("+00:00")
    assert "run" not in line


def test_plain_line_shows_the_event_and_the_jobs_fields_after_the_message() -> None:
    logs.enter_job(message_id="abc", run=3)
    try:
        text = logs.PlainFormatter().format(record("Lease lost", detector="watcher", event="lease.lost", token=7))
    finally:
        logs.leave_job()
    assert text.endswith("INFO    leases: Lease lost  [event=lease.lost detector=watcher token=7 message_id=abc run=3]")


def test_what_the_line_says_wins_over_its_context() -> None:
    logs.enter_job(run=3)
    try:
        assert vars(record("x", run=4))["run"] == 4
    finally:
        logs.leave_job()


@pytest.mark.parametrize("formatter", [logs.PlainFormatter(), logs.JsonFormatter()])
def test_exceptions_are_shown(formatter: logging.Formatter) -> None:
    line = record("failed")
    try:
        raise ValueError("the reason")
    except ValueError:
        line.exc_info = sys.exc_info()
    assert "ValueError: the reason" in formatter.format(line)


@pytest.mark.parametrize("formatter", [logs.PlainFormatter(), logs.JsonFormatter()])
def test_line_about_a_request_shows_neither_socket_nor_request(formatter: logging.Formatter) -> None:
    with socket.socket() as request:
        line = formatter.format(record("GET /admin/ 200", request=request, server_time="x", status_code=200))
    assert "socket" not in line
    assert "server_time" not in line
    assert "200" in line


def test_steps_of_the_development_mail_server_are_not_logged() -> None:
    logging.config.dictConfig(settings.LOGGING)
    assert not logging.getLogger("mail.log").isEnabledFor(logging.INFO)


def test_value_that_json_does_not_know_does_not_break_a_line() -> None:
    assert json.loads(logs.JsonFormatter().format(record("x", what=object())))["what"].startswith("<object")
