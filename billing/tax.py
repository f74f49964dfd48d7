"""The tax service: which rate applies to each line.

Asked in chunks, outside any transaction. Each answer is saved under the fence before the next question, so that an
attempt that breaks off, or a killed worker's successor, pays only for what is missing. An answer that does not come is
never taken for zero.
"""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any

import httpx

from billing.conf import conf
from billing.errors import TaxAnswerInvalid, TaxRejected, TaxUnavailable, TaxUnknown
from billing.models import Customer, TaxAnswer
from billing.rating import RatedLine
from leases import Lease

logger = logging.getLogger("billing.tax")

TRIES = 3
LONGEST_PAUSE = timedelta(seconds=2)
LONGEST_WISH = timedelta(days=1)
RATE_PLACES = 6  # as InvoiceLine.tax_rate stores it

_making_client = threading.Lock()

Question = dict[str, Any]


def rates(lease: Lease, customer: Customer, document: str, lines: Sequence[RatedLine]) -> dict[int, Decimal]:
    """Return the tax rate of each line by position.

    `document` names the invoice to the service and is the same at every attempt, so that a question that was sent
    twice is one document there. Raises TaxRejected (a person), TaxUnavailable or TaxUnknown (later), TaxAnswerInvalid.
    """
    questions = {_hash(question): question for question in _questions(customer, document, lines)}
    saved = TaxAnswer.objects.using(lease.using).filter(
        customer=customer, document=document, content_hash__in=list(questions)
    )
    answers: dict[str, dict[str, str]] = {answer.content_hash: answer.rates for answer in saved}
    for chunk, (content_hash, question) in enumerate(questions.items(), 1):
        if content_hash in answers:
            continue
        answer = _ask_patiently(lease, question)
        answers[content_hash] = answer
        with lease.transaction():
            row = TaxAnswer(customer=customer, document=document, content_hash=content_hash, rates=answer)
            TaxAnswer.objects.using(lease.using).bulk_create([row], ignore_conflicts=True)
        logger.info(
            "The tax service answered %s, request %d of %d.",
            document,
            chunk,
            len(questions),
            extra={"event": "tax.answered", "document": document, "chunk": chunk, "chunks": len(questions)},
        )
    return {int(key): Decimal(rate) for answer in answers.values() for key, rate in answer.items()}


def _questions(customer: Customer, document: str, lines: Sequence[RatedLine]) -> Iterator[Question]:
    for start in range(0, len(lines), conf.TAX_LINES_PER_REQUEST):
        yield {
            "document": document,
            "country": customer.country,
            "currency": customer.currency,
            "lines": [
                {"key": str(line.position), "category": line.tax_category, "net_minor": line.net_minor}
                for line in lines[start : start + conf.TAX_LINES_PER_REQUEST]
            ],
        }


def _hash(question: Question) -> str:
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()


def _ask_patiently(lease: Lease, question: Question) -> dict[str, str]:
    """Ask, and once more after a short pause when one bad answer among many is the likely reason."""
    for attempt in range(1, TRIES + 1):
        lease.check()
        try:
            return _ask(question)
        except (TaxUnavailable, TaxUnknown) as error:
            pause = error.retry_after or timedelta(milliseconds=100 * 2**attempt)
            if attempt == TRIES or pause > LONGEST_PAUSE:
                raise
            time.sleep(pause.total_seconds())
    raise AssertionError("unreachable")


def _ask(question: Question) -> dict[str, str]:
    document = question["document"]
    if not is_address(conf.TAX_URL):  # nobody's tax can be asked for, and that is no customer's fault
        raise TaxUnavailable(document, f"BILLING_TAX_URL is {conf.TAX_URL!r}, which is no http address")
    try:
        response = _client().post(f"{conf.TAX_URL}/v1/taxes", json=question, timeout=conf.TAX_TIMEOUT.total_seconds())
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        raise TaxUnavailable(document, f"{type(error).__name__} at {conf.TAX_URL}") from error
    except httpx.TransportError as error:
        raise TaxUnknown(document, type(error).__name__) from error
    if response.status_code in (400, 422):
        raise TaxRejected(document, response.status_code, response.text[:300])
    if response.status_code != 200:
        # Also what only an operator can cure, such as 401 or 404: it concerns every customer, so none is parked.
        raise TaxUnavailable(document, f"status {response.status_code}", retry_after=_retry_after(response))
    return _checked(question, response)


def is_address(url: str) -> bool:
    """Say whether requests can be sent to `url` at all."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError):
        return False
    return parsed.scheme in ("http", "https") and bool(parsed.host)


def _checked(question: Question, response: httpx.Response) -> dict[str, str]:
    document = question["document"]
    try:
        answer = {str(line["key"]): (str(line["category"]), str(line["rate"])) for line in response.json()["lines"]}
    except (ValueError, KeyError, TypeError) as error:
        raise TaxAnswerInvalid(document, f"{type(error).__name__} reading {response.text[:200]!r}") from error
    for line in question["lines"]:
        category, rate = answer.get(line["key"], ("", ""))
        if category != line["category"]:
            raise TaxAnswerInvalid(document, f"line {line['key']} of category {line['category']!r} has no answer")
        _check_rate(document, rate)
    return {line["key"]: answer[line["key"]][1] for line in question["lines"]}


def _check_rate(document: str, text: str) -> None:
    try:
        rate = Decimal(text)
    except InvalidOperation:
        rate = Decimal("NaN")
    if not rate.is_finite() or not 0 <= rate <= 10 or rate != round(rate, RATE_PLACES):
        raise TaxAnswerInvalid(document, f"{text!r} is no tax rate such as 0.19")


def _retry_after(response: httpx.Response) -> timedelta | None:
    """Return how long the service asks to be left alone (RFC 9110, 10.2.3: seconds or a date), at most a day."""
    text = response.headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return min(timedelta(seconds=int(text[:9])), LONGEST_WISH)
    try:
        return min(max(timedelta(0), parsedate_to_datetime(text) - datetime.now(UTC)), LONGEST_WISH)
    except (ValueError, TypeError):
        return None


def _client() -> httpx.Client:
    """One pool of connections per process, made when first used: after a fork, never before."""
    with _making_client:  # threads that come first at once would each make one
        return _made_client()


@cache
def _made_client() -> httpx.Client:
    return httpx.Client(limits=httpx.Limits(max_connections=64, max_keepalive_connections=16))
