"""Having the development servers run before a command that needs them."""

import os
import sys
from collections.abc import Callable

from django.conf import settings
from django.core.management.base import CommandError

from .checkout import Checkout
from .errors import DevServicesError


def have_servers(say: Callable[[str], object]) -> None:
    """Return if the development servers run; else say so, start them, and start this command afresh.

    Only then do its settings know where they are. Raises CommandError when one cannot be started.
    """
    checkout = Checkout(settings.BASE_DIR / ".local")
    running = {server.name for server in checkout.started_servers() if server.is_running()}
    if set(settings.DEVSERVICES) <= running:
        return
    say("starting PostgreSQL and Valkey")
    try:
        checkout.up(settings.DEVSERVICES)
    except (DevServicesError, OSError) as error:
        raise CommandError(str(error)) from error
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606 - ourselves
