"""`manage.py taxservice`: a slow tax service for demonstrations and tests."""

import argparse
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing import arguments
from billing.simulators.stopping import wait_for_stop_signal
from billing.simulators.tax_service import Behaviour, TaxServer

EPILOG = """\
example:
  manage.py taxservice --port 8899 --latency-per-line-ms 20 --fail-rate 0.05 --seed 7 --request-log taxes.jsonl

Prints "listening on ADDRESS:PORT" when it is ready and runs until SIGTERM or Ctrl-C.
exit codes: 0 stopped by a signal; 1 the address or the log file cannot be used; 2 wrong usage
"""


class Command(BaseCommand):
    help = "Run a simulated tax service over HTTP: slow per line, failing as the seed says, always the same answers."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = EPILOG
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
        parser.add_argument(
            "--port", type=arguments.port, default=8899, help="0 takes a free one (default: %(default)s)"
        )
        parser.add_argument(
            "--latency-per-line-ms", type=arguments.number(0, 60_000), default=0, metavar="MS", help="time per line"
        )
        parser.add_argument(
            "--fail-rate", type=arguments.number(0, 1), default=0, metavar="SHARE", help="0 to 1 of all requests fail"
        )
        parser.add_argument(
            "--seed",
            type=arguments.whole(-arguments.MOST),
            default=0,
            help="decides which requests fail (default: %(default)s)",
        )
        parser.add_argument(
            "--retry-after", type=arguments.whole(0, 86_400), default=1, metavar="S", help="sent with 429 (default: 1)"
        )
        parser.add_argument("--request-log", type=Path, metavar="FILE", help="append one JSON line per request")

    def handle(self, **options: Any) -> None:
        behaviour = Behaviour(
            latency_per_line=timedelta(milliseconds=options["latency_per_line_ms"]),
            fail_rate=options["fail_rate"],
            seed=options["seed"],
            retry_after=timedelta(seconds=options["retry_after"]),
        )
        try:
            server = TaxServer((options["host"], options["port"]), behaviour, options["request_log"])
        except (OSError, OverflowError) as problem:
            raise CommandError(f"The tax service cannot start on port {options['port']}: {problem}") from problem
        with server:
            threading.Thread(target=server.serve_forever, name="taxservice", daemon=True).start()
            host, port = server.server_address[:2]
            self.stdout.write(f"listening on {host!s}:{port}")
            self.stdout.flush()
            wait_for_stop_signal()
            server.shutdown()
