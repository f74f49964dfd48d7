"""PostgreSQL and Valkey for development: started on demand, kept in `.local/`."""

import json
from argparse import RawDescriptionHelpFormatter
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from project.devservices.checkout import VARIABLES, Checkout
from project.devservices.errors import DevServicesError

NOT_RUNNING = 3  # what `systemctl status` and init scripts answer


class Command(BaseCommand):
    help = "Starts, stops and shows the development servers of this checkout."
    requires_system_checks = []  # the checks ask whether these servers run

    def add_arguments(self, parser: CommandParser) -> None:
        parser.formatter_class = RawDescriptionHelpFormatter
        parser.epilog = (
            "examples:\n"
            "  manage.py devservices up                 start what does not run yet\n"
            "  manage.py devservices status --json      for programs; exits 3 when one does not run\n"
            "  eval $(manage.py devservices env)        their addresses for other programs\n"
            "  manage.py devservices down --purge       stop them and forget all they knew\n\n"
            "A server whose address DATABASE_URL or REDIS_URL gives is yours: it is not started."
        )
        parser.add_argument("action", choices=["up", "down", "status", "env"])
        parser.add_argument("--purge", action="store_true", help="with down: remove all data, logs and copied binaries")
        parser.add_argument("--json", action="store_true", help="with status: print JSON")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        if not settings.DEBUG:
            raise CommandError("Development servers are for DEBUG=on; in production set DATABASE_URL and REDIS_URL.")
        checkout = Checkout(settings.BASE_DIR / ".local")
        try:
            match action:
                case "up":
                    self.up(checkout)
                case "down":
                    self.down(checkout, purge=options["purge"])
                case "status":
                    self.status(checkout, as_json=options["json"])
                case "env":
                    self.env(checkout)
        except (DevServicesError, OSError) as error:
            raise CommandError(str(error)) from error

    def up(self, checkout: Checkout) -> None:
        for name, variable in VARIABLES.items():
            if name not in settings.DEVSERVICES:
                self.stdout.write(f"{name}: not started, {variable} names another")
        if settings.DEVSERVICES:
            for server, started in checkout.up(settings.DEVSERVICES):
                self.stdout.write(f"{server.name}: {'started' if started else 'runs already'} at {server.url}")

    def down(self, checkout: Checkout, *, purge: bool) -> None:
        stopped = checkout.down(purge=purge)
        for server in stopped:
            self.stdout.write(f"{server.name}: stopped")
        if not stopped:
            self.stdout.write("none of them was running")

    def status(self, checkout: Checkout, *, as_json: bool) -> None:
        servers = checkout.started_servers()
        running = [server for server in servers if server.is_running()]
        if as_json:
            report = {
                server.name: {
                    "running": server in running,
                    "url": server.url,
                    "pid": server.process.pid if server.process and server in running else None,
                    "log": str(server.log),
                }
                for server in servers
            }
            self.stdout.write(json.dumps(report, indent=2))
        else:
            for server in servers:
                state = "runs" if server in running else "down"
                self.stdout.write(f"{server.name}: {state}, {server.url}, log {server.log}")
        wanted = set(settings.DEVSERVICES)
        if not wanted <= {server.name for server in running}:
            if not as_json:
                self.stdout.write("start them with: manage.py devservices up")
            raise SystemExit(NOT_RUNNING)

    def env(self, checkout: Checkout) -> None:
        servers = checkout.started_servers()
        if not servers:
            raise CommandError("They were never started here: manage.py devservices up")
        for server in servers:
            self.stdout.write(f"export {VARIABLES[server.name]}={server.url}")
