"""What can be seen of this deployment before it runs."""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register

from project.devservices.checkout import Checkout


@register()
def development_servers_run(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Find development servers that the settings rely on and that do not run (project.E001)."""
    if not settings.DEVSERVICES:
        return []
    running = {s.name for s in Checkout(settings.BASE_DIR / ".local").started_servers() if s.is_running()}
    return [
        Error(
            f"The development server {name} does not run, and no address of another is given.",
            hint="Type: python manage.py devservices up",
            id="project.E001",
        )
        for name in settings.DEVSERVICES
        if name not in running
    ]
