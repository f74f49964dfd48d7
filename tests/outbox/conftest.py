"""What the outbox tests share: a mail server, and a drainer in this process."""

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

import outbox
from outbox.drain import Drainer, Report, Until
from outbox.lane import Pace
from outbox.models import Message

from .smtp_server import MailServer

MAIL = {"to": "anna@example.org", "subject": "Invoice 7", "text": "Grüße, bitte zahlen.\n.\n", "from": "b@example.com"}


@pytest.fixture
def mail_server(settings: Any) -> Iterator[MailServer]:
    """A mail server that the email channel sends to."""
    server = MailServer()
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT, settings.EMAIL_TIMEOUT = "127.0.0.1", server.port, 1
    yield server
    server.close()


@pytest.fixture
def publish() -> Callable[..., Message]:
    """Publish one email in a transaction of its own."""

    def publish(dedupe_key: str = "k", **content: Any) -> Message:
        with transaction.atomic():
            return outbox.publish("email", {**MAIL, **content}, dedupe_key=dedupe_key)

    return publish


@pytest.fixture
def drain() -> Callable[..., Report]:
    """Drain in this thread, until nothing is due, and give the report."""

    def drain(**options: Any) -> Report:
        return drainer(**options).run()

    return drain


def drainer(
    *,
    channel: str = "email",
    until: Until = Until.EMPTY,
    batch_size: int = 100,
    micro_batch: int | None = None,
    concurrency: int = 1,
    claim_ttl: float = 60.0,
    per_second: float | None = None,
    **options: Any,
) -> Drainer:
    pace = Pace(
        batch_size=batch_size,
        micro_batch=micro_batch,
        concurrency=concurrency,
        claim_ttl=timedelta(seconds=claim_ttl),
        poll_interval=timedelta(seconds=0.1),
        per_second=per_second,
    )
    return Drainer(using="default", names=[channel], pace=pace, until=until, **options)


@pytest.fixture(autouse=True)
def _no_threads_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [t for t in threading.enumerate() if t not in before and t.name.startswith("outbox-")]
    assert not left, f"threads left running: {left}"


class OnEvent(logging.Handler):
    """Calls `function` when the step `event` passes for the `nth` time, in the thread that passes it."""

    def __init__(self, event: str, function: Callable[[], object], nth: int = 1) -> None:
        super().__init__()
        self._event, self._function, self._left = event, function, nth

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "event", None) == self._event:
            self._left -= 1
            if self._left == 0:
                self._function()


@pytest.fixture
def on_event() -> Iterator[Callable[..., None]]:
    """Do something at a step of the drainer in this process."""
    logger = logging.getLogger("outbox")
    level, handlers = logger.level, []

    def on_event(event: str, function: Callable[[], object], nth: int = 1) -> None:
        handlers.append(OnEvent(event, function, nth))
        logger.addHandler(handlers[-1])

    logger.setLevel(logging.INFO)
    yield on_event
    logger.setLevel(level)
    for handler in handlers:
        logger.removeHandler(handler)


@pytest.fixture
def drainer_env(mail_server: MailServer, tmp_path: Path) -> dict[str, str]:
    """The environment of a drainer under test in its own process."""
    return {
        "DJANGO_SETTINGS_MODULE": "tests.outbox.settings",
        "EMAIL_HOST": "127.0.0.1",
        "EMAIL_PORT": str(mail_server.port),
        "FAULT_MARKER": str(tmp_path / "marker"),
        "OUTBOX_TEST_RECORD": str(tmp_path / "record"),
    }
