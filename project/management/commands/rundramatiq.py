"""Runs the workers."""

import os
import sys
from argparse import RawDescriptionHelpFormatter
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from billing import arguments


class Command(BaseCommand):
    help = "Runs worker processes that take jobs from the broker."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.formatter_class = RawDescriptionHelpFormatter
        parser.epilog = (
            "example:\n"
            "  manage.py rundramatiq --processes 8 --threads 1 --queues billing\n\n"
            "SIGTERM and Ctrl-C let jobs finish and take no new ones; a second one ends at once. One worker process\n"
            "that is killed ends them all: run under a supervisor that starts the command again."
        )
        parser.add_argument(
            "--processes", type=arguments.positive, default=2, help="worker processes (default: %(default)s)"
        )
        parser.add_argument(
            "--threads", type=arguments.positive, default=4, help="threads in each (default: %(default)s)"
        )
        parser.add_argument("--queues", nargs="+", metavar="QUEUE", help="only these queues (default: all)")
        parser.add_argument(
            "--prefetch",
            type=arguments.positive,
            metavar="N",
            help="messages a process holds, begun or not (default: twice its threads). With jobs of minutes give the "
            "number of threads, so that no message waits in a busy or frozen process while another is idle",
        )
        parser.add_argument(
            "--shutdown-timeout",
            type=arguments.positive,
            metavar="SECONDS",
            default=30,
            help="how long a stopping worker waits for its jobs; what is cut off then is delivered again and finds "
            "its lease ended (default: %(default)s)",
        )

    def handle(self, *args: Any, processes: int, threads: int, shutdown_timeout: int, **options: Any) -> None:
        # fmt: off
        command = [
            sys.executable, "-m", "dramatiq", "project.worker",
            "--path", str(settings.BASE_DIR),
            "--processes", str(processes),
            "--threads", str(threads),
            "--worker-shutdown-timeout", str(shutdown_timeout * 1000),
        ]
        # fmt: on
        if options["queues"]:
            command += ["--queues", *options["queues"]]
        if options["prefetch"]:
            os.environ["dramatiq_queue_prefetch"] = str(options["prefetch"])  # noqa: SIM112 - as Dramatiq spells it
        if options["verbosity"] > 1:
            command.append("--verbose")
        self.stdout.flush()
        # This process becomes Dramatiq's: its number stays, and signals reach it.
        os.execv(sys.executable, command)  # noqa: S606 - our own words
