import dramatiq
from django.apps import AppConfig


class ProjectConfig(AppConfig):
    name = "project"

    def ready(self) -> None:
        from django.conf import settings

        from project import alerts, checks  # noqa: F401 - connects and registers them
        from project.broker import make_broker

        dramatiq.set_broker(make_broker(settings.BROKER_URL, max_hold=settings.LEASES_MAX_HOLD))
