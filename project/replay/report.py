"""What a replay found, for people and for machines."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from billing.wording import counted
from project.replay.counting import Counts
from project.replay.timeline import Cause

ROWS: list[tuple[str, Callable[[Counts], int | float]]] = [
    ("customers", lambda counts: counts.customers),
    ("customers without an invoice", lambda counts: counts.without_invoice),
    ("invoices", lambda counts: counts.invoices),
    ("customers invoiced twice", lambda counts: sum(counts.twice.values())),
    *[(f"  {cause}", lambda counts, cause=cause: counts.twice.get(cause, 0)) for cause in Cause],
    ("customers invoiced three times or more", lambda counts: sum(counts.more.values())),
    *[(f"  {cause}", lambda counts, cause=cause: counts.more.get(cause, 0)) for cause in Cause],
    ("emails", lambda counts: counts.emails),
    ("second emails", lambda counts: counts.second_emails),
    ("customers without an email", lambda counts: counts.without_email),
    ("emails in doubt", lambda counts: counts.in_doubt),
    ("leases expired under a running holder", lambda counts: counts.expired_under_holder),
    ("stale holders refused", lambda counts: counts.stale_refused),
    ("wasted seconds of work", lambda counts: counts.wasted_s),
    ("seconds until all was invoiced and mailed", lambda counts: counts.done_s),
]


def table(naive: Counts, ours: Counts) -> list[str]:
    """Return the lines of one table for both sides; a row for an unknown cause only where there is one."""
    lines = [f"{'':<42}{'naive lock':>14}{'Invoice Once':>14}"]
    for title, value in ROWS:
        left, right = value(naive), value(ours)
        if title.strip() != Cause.UNKNOWN or left or right:
            lines.append(f"{title:<42}{left:>14}{right:>14}")
    return lines


def explained(ours: Counts) -> list[str]:
    """Return, in sentences, what in the protected side's column may surprise."""
    if ours.stale_refused:
        return []
    return [
        "No stale holder was refused because none came back: nobody woke up to find that another worker had taken its "
        "customer over. With more customers some do."
    ]


def broken(ours: Counts) -> list[str]:
    """Return, in sentences, which promises the protected side broke."""
    found = {
        counted(ours.second_invoices, "second invoice"): ours.second_invoices,
        counted(ours.second_emails, "second email"): ours.second_emails,
        f"{counted(ours.without_invoice, 'customer')} without an outcome": ours.without_invoice,
        f"{counted(ours.without_email, 'customer')} without an email, {ours.in_doubt} in doubt": max(
            0, ours.without_email - ours.in_doubt
        ),
    }
    return [sentence for sentence, count in found.items() if count]


def too_weak(naive: Counts) -> bool:
    """Return whether the faults did not even hurt the naive side in the ways of the incident."""
    return not any(
        counts.get(cause) for counts in (naive.twice, naive.more) for cause in (Cause.EXPIRED, Cause.FOREIGN)
    )


def as_json(naive: Counts, ours: Counts, **parameters: Any) -> dict[str, Any]:
    """Return parameters and both sides' counts as one JSON object."""
    return {**parameters, "naive": asdict(naive), "ours": asdict(ours), "broken": broken(ours)}
