"""The admin with a user for development: `make admin`."""

import logging
import os
import secrets
import socket
from argparse import RawDescriptionHelpFormatter
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing import arguments
from project.devservices.starting import have_servers

USER = "developer"


class Command(BaseCommand):
    help = "Runs the admin on this machine only, for a development user whose password it makes and prints."
    requires_system_checks = []  # they ask for the servers that this command starts

    def add_arguments(self, parser: CommandParser) -> None:
        parser.formatter_class = RawDescriptionHelpFormatter
        parser.epilog = (
            "example:\n"
            "  manage.py admin --port 8001\n\n"
            "Starts the development servers and migrates first. Each start makes a new password.\n\n"
            "exit codes: 0 stopped with Ctrl-C; 1 it could not start"
        )
        parser.add_argument(
            "--port", type=arguments.whole(1, 65535), default=8000, help="where it listens (default: %(default)s)"
        )

    def handle(self, *args: Any, port: int, **options: Any) -> None:
        if not settings.DEBUG:
            raise CommandError("This makes an administrator and prints the password, so it needs DEBUG=on.")
        refuse_taken(port)
        have_servers(self.say)
        # Until the server starts, which configures logging afresh: from then on a line per request is wanted.
        logging.getLogger().setLevel(logging.WARNING)
        call_command("migrate", verbosity=0)
        password = self.make_user()
        self.say(f"\n  http://127.0.0.1:{port}/admin/   user {USER}, password {password}\n")
        self.say_what_is_there()
        os.environ["DJANGO_RUNSERVER_HIDE_WARNING"] = "true"
        call_command("runserver", f"127.0.0.1:{port}", use_reloader=False, verbosity=0)

    def make_user(self) -> str:
        """Make the development user or give it a new password, which ends its sessions; return the password."""
        from django.contrib.auth.models import User

        password = secrets.token_urlsafe(12)
        user, _ = User.objects.get_or_create(username=USER)
        user.is_active = user.is_staff = user.is_superuser = True
        user.set_password(password)
        user.save()
        return password

    def say_what_is_there(self) -> None:
        from billing.models import Run

        if Run.objects.exists():
            self.say(
                "No workers run here: what is tried again waits for `manage.py rundramatiq`, and mail for "
                "`manage.py drain_outbox --watch`."
            )
        else:
            self.say("Nothing was billed here yet: `make demo` bills a month of sample usage to look at.")

    def say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()


def refuse_taken(port: int) -> None:
    """Raise CommandError if somebody listens there, before a new password locks out who is logged in."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise CommandError(
                f"Port {port} cannot be used ({error.strerror}): give another with --port, as in "
                f'make admin ARGS="--port 8001".'
            ) from error
