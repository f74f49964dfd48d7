"""The project's settings with an app of fenced tables that only the tests need."""

from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.ledger", "tests.jobs"]
