"""The counter: what each side did, taken from where it cannot be argued with.

Invoices are counted in the tables by plain SQL, emails in the mail server's record, wasted work in the tax service's
log. None of it uses code of the side that is counted.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from project.replay.timeline import Cause, Timeline


@dataclass(frozen=True)
class Books:
    """How to read one side's books: SQL for live invoices per customer id, and for how many mails are in doubt."""

    invoices: str
    in_doubt: str
    renews: bool
    """Whether a lock lasts as long as its holder keeps renewing it."""


@dataclass(frozen=True)
class Counts:
    """What one side did with the same work under the same faults."""

    customers: int
    without_invoice: int
    invoices: int
    twice: Mapping[Cause, int]
    """Customers with two invoices, by why the second could be made."""
    more: Mapping[Cause, int]
    """Customers with three invoices or more, by the rarest reason among theirs."""
    emails: int
    second_emails: int
    without_email: int
    in_doubt: int
    expired_under_holder: int
    stale_refused: int
    wasted_s: float
    done_s: float

    @property
    def second_invoices(self) -> int:
        return self.invoices - (self.customers - self.without_invoice)


def count(
    books: Books,
    *,
    database_url: str,
    mail_record: Path,
    tax_log: Path,
    timeline: Timeline,
    ttl_s: float,
    done_s: float,
) -> Counts:
    """Count one side, which had invoiced and mailed all after `done_s`."""
    with psycopg.connect(database_url) as connection:
        addresses: dict[int, str] = dict(connection.execute("SELECT id, email FROM billing_customer").fetchall())
        invoices: Counter[int] = Counter(dict(connection.execute(books.invoices.encode()).fetchall()))
        in_doubt = connection.execute(books.in_doubt.encode()).fetchone()
    mails = Counter(address for line in _lines(mail_record) for address in line["rcpt_tos"])
    causes = timeline.causes(ttl_s)
    return Counts(
        customers=len(addresses),
        without_invoice=sum(not invoices[customer] for customer in addresses),
        invoices=invoices.total(),
        twice=_by_cause({customer for customer, n in invoices.items() if n == 2}, causes),
        more=_by_cause({customer for customer, n in invoices.items() if n > 2}, causes),
        emails=mails.total(),
        second_emails=sum(n - 1 for n in mails.values()),
        without_email=sum(not mails[address] for address in addresses.values()),
        in_doubt=int(in_doubt[0]) if in_doubt else 0,
        expired_under_holder=timeline.expired_under_holder(ttl_s, renews=books.renews),
        stale_refused=timeline.stale_refused(),
        wasted_s=_asked_again_s(tax_log),
        done_s=done_s,
    )


def _by_cause(customers: set[int], causes: Mapping[str, list[Cause]]) -> dict[Cause, int]:
    """Return how many of `customers` have each cause; one with several is counted under the rarest, the last listed."""
    ranked = (Cause.DOUBLED, Cause.EXPIRED, Cause.FOREIGN)
    found = Counter(
        max(causes.get(str(customer), [Cause.UNKNOWN]), key=[Cause.UNKNOWN, *ranked].index) for customer in customers
    )
    return {cause: found[cause] for cause in Cause if found[cause] or cause is not Cause.UNKNOWN}


def _asked_again_s(tax_log: Path) -> float:
    """Return the seconds the tax service spent on questions that it had answered before."""
    spent, first = 0.0, set()
    for line in _lines(tax_log):
        if line["digest"] in first:
            spent += line["seconds"]
        first.add(line["digest"])
    return round(spent, 1)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
