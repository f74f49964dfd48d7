"""What can be seen of this deployment before it runs."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register

from leases.jobs.brokers import TIME_LIMIT_MARGIN
from outbox.channels.email_rendering import one_address
from project.devservices.checkout import Checkout


@register()
def development_servers_run(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Find development servers that the settings rely on and that do not run (project.E001)."""
    return [
        Error(
            f"The development server {name} does not run, and no address of another is given.",
            hint="Type: python manage.py devservices up",
            id="project.E001",
        )
        for name in absent_servers()
    ]


def absent_servers() -> list[str]:
    """Return the names of the development servers that the settings rely on and that do not run."""
    if not settings.DEVSERVICES:
        return []
    running = {s.name for s in Checkout(settings.BASE_DIR / ".local").started_servers() if s.is_running()}
    return [name for name in settings.DEVSERVICES if name not in running]


@register()
def alerts_can_be_mailed(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Find operators who are to be told of incidents and have no address (project.E003)."""
    return [
        Error(
            f"ALERT_EMAILS names {address!r}, to which no mail can be sent.",
            hint="Write addresses, separated by commas: ops@example.org,night@example.org.",
            id="project.E003",
        )
        for address in settings.ALERT_EMAILS
        if not _is_address(address)
    ]


def _is_address(text: str) -> bool:
    try:
        one_address("it", text)
    except ValueError:
        return False
    return True


@register()
def rabbitmq_waits_for_long_jobs(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Find a RabbitMQ that takes messages away from jobs whose lease still lasts (project.E002)."""
    if urlsplit(settings.BROKER_URL).scheme not in ("amqp", "amqps"):
        return []
    limit = settings.LEASES_MAX_HOLD + TIME_LIMIT_MARGIN
    if limit < settings.BROKER_CONSUMER_TIMEOUT:
        return []
    needed = round((limit + timedelta(minutes=5)).total_seconds())
    return [
        Error(
            f"RabbitMQ gives a message to another worker after its consumer_timeout, which is "
            f"{settings.BROKER_CONSUMER_TIMEOUT} (BROKER_CONSUMER_TIMEOUT_SECONDS), and a job may run for {limit} "
            "(LEASES_MAX_HOLD and a margin).",
            hint=f"Put `consumer_timeout = {needed * 1000}` (milliseconds) into rabbitmq.conf and restart RabbitMQ, "
            f"then set BROKER_CONSUMER_TIMEOUT_SECONDS={needed}; or lower LEASES_MAX_HOLD_SECONDS.",
            id="project.E002",
        )
    ]
