"""The tax service as a real process, and a clean start for leases."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django_redis import get_redis_connection
from pytest_django import Settings

from tests.servers.plugin import SCRATCH
from tests.servers.processes import Processes


class TaxService:
    """The running service, and what it was asked since the test began."""

    def __init__(self, url: str, log: Path) -> None:
        self.url = url
        self._log = log
        self._skip = len(self._lines())

    def requests(self) -> list[dict[str, Any]]:
        return self._lines()[self._skip :]

    def _lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()] if self._log.exists() else []


def start_tax_service(processes: Processes, log: Path, *options: object) -> str:
    """Start a tax service and return its URL."""
    process = processes.start("taxservice", "--port", 0, "--request-log", log, *options)
    port = process.wait_for_line(r"listening on .*:(\d+)", 60)[1]
    return f"http://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def well_behaved_tax_service(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("tax")
    started = Processes(pytestconfig.stash[SCRATCH], folder)
    yield start_tax_service(started, folder / "requests.jsonl"), folder / "requests.jsonl"
    started.close()


@pytest.fixture
def tax(transactional_db: None, well_behaved_tax_service: tuple[str, Path], settings: Settings) -> Iterator[TaxService]:
    """A committed database, no leases, and a tax service that always answers."""
    get_redis_connection("leases").flushdb()
    url, log = well_behaved_tax_service
    settings.BILLING_TAX_URL = url
    yield TaxService(url, log)
    get_redis_connection("leases").flushdb()
