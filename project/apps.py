import dramatiq
from django.apps import AppConfig
from django.contrib.admin import apps as admin_apps


class ProjectConfig(AppConfig):
    name = "project"

    def ready(self) -> None:
        from django.conf import settings

        from project import alerts, checks  # noqa: F401 - connects and registers them
        from project.broker import make_broker

        dramatiq.set_broker(make_broker(settings.BROKER_URL))


class AdminConfig(admin_apps.AdminConfig):
    """Django's admin, with the project's own site."""

    default = False
    default_site = "project.admin_site.Site"
