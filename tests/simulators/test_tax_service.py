import json
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from billing.simulators.tax_service import OVERLOADED, REPLY_LOST, TOO_MANY, Behaviour
from tests.simulators.conftest import Start


def document(name: str, count: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "document": name,
        "country": "DE",
        "currency": "EUR",
        "lines": [{"key": str(number), "category": "standard", "net_minor": 100} for number in range(count)],
        **changes,
    }


def ask(port: int, content: Any) -> httpx.Response:
    return httpx.post(f"http://127.0.0.1:{port}/v1/taxes", json=content, timeout=10)


def test_the_same_question_has_the_same_answer(simulator: Start) -> None:
    _, port = simulator("taxservice")
    first, second = ask(port, document("a", count=2)), ask(port, document("a", count=2))
    assert first.status_code == 200
    assert first.json() == second.json()
    assert first.json() == {
        "document": "a",
        "lines": [
            {"key": "0", "category": "standard", "rate": "0.19"},
            {"key": "1", "category": "standard", "rate": "0.19"},
        ],
    }


def test_time_passes_per_line_inside_a_request(simulator: Start) -> None:
    _, port = simulator("taxservice", "--latency-per-line-ms", "40")
    started = time.monotonic()
    ask(port, document("slow", count=10))
    assert time.monotonic() - started >= 0.4


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"country": "XX"}, "unknown country"),
        ({"lines": [{"key": "1", "category": "odd", "net_minor": 1}]}, "unknown tax category"),
        ({"lines": [{"key": "1", "category": "standard", "net_minor": 1.5}]}, "net_minor"),
        ({"lines": [{"key": "1", "category": "standard", "net_minor": 1}] * 2}, "more than once"),
        ({"lines": []}, "not empty"),
        ({"document": ""}, "document"),
        ({"currency": "EURO"}, "ISO 4217"),
    ],
)
def test_a_question_that_can_never_be_answered_is_rejected(
    simulator: Start, change: dict[str, Any], reason: str
) -> None:
    _, port = simulator("taxservice")
    answer = ask(port, document("wrong", **change))
    assert answer.status_code == 422
    assert reason in answer.json()["error"]


def test_the_seed_alone_decides_which_requests_fail(simulator: Start, tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    _, port = simulator("taxservice", "--fail-rate", "0.5", "--seed", "3", "--request-log", str(log))
    expected = Behaviour(fail_rate=0.5, seed=3)
    seen = set()
    for number in range(20):
        fault = expected.fault(f"doc-{number}", 1)
        seen.add(fault)
        if fault == REPLY_LOST:
            with pytest.raises(httpx.RemoteProtocolError):
                ask(port, document(f"doc-{number}"))
            continue
        answer = ask(port, document(f"doc-{number}"))
        assert answer.status_code == (fault or 200)
        assert answer.headers.get("Retry-After") == ("1" if fault == TOO_MANY else None)
    assert seen == {None, OVERLOADED, TOO_MANY, REPLY_LOST}
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert [entry["document"] for entry in entries] == [f"doc-{number}" for number in range(20)]


def test_half_of_many_requests_fail_at_a_rate_of_one_half() -> None:
    behaviour = Behaviour(fail_rate=0.5, seed=1)
    failed = sum(behaviour.fault(str(number), 1) is not None for number in range(10_000))
    assert 4_800 < failed < 5_200


def test_health_is_answered_and_sigterm_ends_it_cleanly(simulator: Start) -> None:
    process, port = simulator("taxservice")
    assert httpx.get(f"http://127.0.0.1:{port}/healthz").json() == {"status": "ok"}
    assert httpx.get(f"http://127.0.0.1:{port}/elsewhere").status_code == 404
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 0
