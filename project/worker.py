"""What a Dramatiq worker process imports: Django, then every actor of the installed apps."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
django.setup()

from django.utils.module_loading import autodiscover_modules  # noqa: E402 - needs Django set up

autodiscover_modules("actors")
