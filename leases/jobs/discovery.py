"""Finding a project's actors, for commands and the admin, which are not workers."""

from django.apps import apps
from django.conf import settings
from django.utils.module_loading import autodiscover_modules


def import_actors() -> None:
    """Import the module `actors` of every app that has one; with django_dramatiq, also those that it looks for."""
    modules = ["actors"]
    if apps.is_installed("django_dramatiq"):
        modules += getattr(settings, "DRAMATIQ_AUTODISCOVER_MODULES", ["tasks"])
    autodiscover_modules(*modules)
