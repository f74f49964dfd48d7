"""A tax service over HTTP that is slow and fails now and then, both as told.

`POST /v1/taxes` answers the rate of each line; `GET /healthz` says that the service is up. Time passes per line
inside a request, as with a provider that computes line by line. Whether the n-th request for a document fails is
decided by the seed alone, so two runs over the same documents meet the same faults in whatever order they ask.
"""

import hashlib
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TextIO

from billing.simulators import tax_rates
from billing.simulators.tax_rates import Rejected

OVERLOADED, TOO_MANY, REPLY_LOST = 503, 429, 0
FAULTS = (OVERLOADED, TOO_MANY, REPLY_LOST)


@dataclass(frozen=True)
class Behaviour:
    """How slow and how unreliable the service is."""

    latency_per_line: timedelta = timedelta(0)
    fail_rate: float = 0.0
    """Share of requests that fail, from 0 to 1: in equal parts 503, 429 with Retry-After, and a lost reply."""
    seed: int = 0
    retry_after: timedelta = timedelta(seconds=1)

    def fault(self, document: str, attempt: int) -> int | None:
        """Return which of `FAULTS` the `attempt`-th request (from 1) for `document` meets, or None."""
        digest = hashlib.sha256(f"{self.seed}:{document}:{attempt}".encode()).digest()
        if int.from_bytes(digest[:6], "big") >= self.fail_rate * 2**48:
            return None
        return FAULTS[digest[6] % len(FAULTS)]


class TaxServer(ThreadingHTTPServer):
    """The service on one address; `serve_forever()` runs it, one thread per connection."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], behaviour: Behaviour, request_log: Path | None = None) -> None:
        self.behaviour = behaviour
        self._mutex = threading.Lock()
        self._attempts: Counter[str] = Counter()
        self._log: TextIO | None = request_log.open("a", encoding="utf-8") if request_log else None
        super().__init__(address, TaxHandler)

    def server_close(self) -> None:
        super().server_close()
        with self._mutex:
            if self._log:
                self._log.close()
                self._log = None

    def next_attempt(self, document: str) -> int:
        with self._mutex:
            self._attempts[document] += 1
            return self._attempts[document]

    def record(self, started: datetime, question: "Question | None", attempt: int, status: int) -> None:
        """Append one JSON line to the request log; status 0 means that the reply was withheld."""
        ended = datetime.now(UTC)
        entry = {
            "started": started.isoformat(),
            "seconds": round((ended - started).total_seconds(), 6),
            "document": question.document if question else "",
            "digest": question.digest if question else "",
            "lines": len(question.lines) if question else 0,
            "attempt": attempt,
            "status": status,
        }
        with self._mutex:
            if self._log:
                print(json.dumps(entry), file=self._log, flush=True)


class TaxHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: TaxServer

    def do_GET(self) -> None:
        if self.path == "/healthz":
            self.answer(200, {"status": "ok"})
        else:
            self.answer(404, {"error": f"no such page: {self.path}"})

    def do_POST(self) -> None:
        started = datetime.now(UTC)
        try:
            body = self.rfile.read(int(self.headers["Content-Length"]))
        except (TypeError, ValueError):
            self.close_connection = True
            self.answer(411, {"error": "Content-Length is missing"})
            return
        if self.path != "/v1/taxes":
            self.answer(404, {"error": f"no such page: {self.path}"})
            return
        try:
            question = Question.parse(body)
            answer = question.answer()
        except Rejected as problem:
            self.server.record(started, None, 0, 422)
            self.answer(422, {"error": str(problem)})
            return
        behaviour = self.server.behaviour
        attempt = self.server.next_attempt(question.document)
        fault = behaviour.fault(question.document, attempt)
        if fault in (OVERLOADED, TOO_MANY):
            self.server.record(started, question, attempt, fault)
            seconds = str(round(behaviour.retry_after.total_seconds()))
            self.answer(fault, {"error": "try again later"}, {"Retry-After": seconds} if fault == TOO_MANY else {})
            return
        time.sleep(behaviour.latency_per_line.total_seconds() * len(question.lines))
        if fault == REPLY_LOST:
            self.server.record(started, question, attempt, REPLY_LOST)
            self.close_connection = True
            return
        self.server.record(started, question, attempt, 200)
        self.answer(200, answer)

    def answer(self, status: int, content: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        body = json.dumps(content).encode()
        try:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:  # the caller has left, or was killed: its own affair
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing on stderr: the request log is the record."""


@dataclass(frozen=True)
class Question:
    """One document whose lines are to be taxed."""

    document: str
    country: str
    digest: str
    """Of the whole request: equal for the same question, told apart from another one about the same document."""
    lines: tuple[tuple[str, str], ...]
    """Pairs of key and tax category; the amounts are checked, but the rate does not depend on them."""

    @classmethod
    def parse(cls, body: bytes) -> "Question":
        """Read the JSON of a request; raise `Rejected` naming the first thing that is wrong."""
        try:
            data = json.loads(body)
        except ValueError as problem:
            raise Rejected(f"the body is no JSON: {problem}") from None
        if not isinstance(data, dict):
            raise Rejected("the body must be a JSON object")
        document, country, currency = data.get("document"), data.get("country", ""), data.get("currency")
        if not isinstance(document, str) or not document:
            raise Rejected("document must be a text that is not empty")
        if not isinstance(country, str):
            raise Rejected("country must be a text")
        if not isinstance(currency, str) or len(currency) != 3:
            raise Rejected(f"currency must be an ISO 4217 code, got {currency!r}")
        entries = data.get("lines")
        if not isinstance(entries, list) or not entries:
            raise Rejected("lines must be a list that is not empty")
        lines = tuple(cls._line(number, entry) for number, entry in enumerate(entries, 1))
        repeated = [key for key, times in Counter(key for key, _ in lines).items() if times > 1]
        if repeated:
            raise Rejected(f"line key {repeated[0]!r} is there more than once")
        return cls(document, country, hashlib.sha256(body).hexdigest()[:16], lines)

    @staticmethod
    def _line(number: int, entry: object) -> tuple[str, str]:
        if not isinstance(entry, dict):
            raise Rejected(f"line {number} must be a JSON object")
        key, category, net_minor = entry.get("key"), entry.get("category"), entry.get("net_minor")
        if not isinstance(key, str) or not isinstance(category, str):
            raise Rejected(f"line {number} needs the texts key and category")
        if not isinstance(net_minor, int) or isinstance(net_minor, bool):
            raise Rejected(f"line {number}: net_minor must be an integer, got {net_minor!r}")
        return key, category

    def answer(self) -> dict[str, Any]:
        """Return the rates, a function of country and categories alone; raise `Rejected` for an unknown one."""
        return {
            "document": self.document,
            "lines": [
                {"key": key, "category": category, "rate": tax_rates.rate(self.country, category)}
                for key, category in self.lines
            ],
        }
