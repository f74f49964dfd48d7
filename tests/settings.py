"""The project's settings with an app of fenced tables that only the tests need."""

from datetime import timedelta

from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.ledger", "tests.jobs"]

# The default takes most of a second for each user that a test makes, which is its purpose.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

LEASES_SCHEDULE = {
    "tick": {"actor": "tick", "every": timedelta(seconds=1), "missed": "all", "kwargs": {"slot": "{slot:%H:%M:%S}"}}
}
