"""The worker of the incident, kept as it was: one `SET NX EX`, the work, one `DEL`, the mail sent directly.

Nothing here is an example to follow. The lock alone is to keep a customer from being invoiced twice, and it is
trusted with three things it cannot do: to last as long as the work, to be deleted by its own holder only, and to cover
a mail that leaves outside the transaction of the invoice. It writes to its own table, which the protected path never
sees.
"""

import logging
import smtplib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import ROUND_HALF_UP, Decimal
from email.message import EmailMessage

import httpx
from django.conf import settings
from django.db import connection
from django_redis import get_redis_connection

log = logging.getLogger(__name__)

CREATE_TABLE = """
CREATE TABLE naive_invoice (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer text NOT NULL,
    period text NOT NULL,
    gross_minor bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""
DROP_TABLE = "DROP TABLE IF EXISTS naive_invoice"


@dataclass(frozen=True)
class Job:
    """One customer's bill for one period: what is on it, in lines of minor units, and where the mail goes."""

    customer: str
    period: str
    email: str
    net_minor: Sequence[int]


def lock_key(customer: str, period: str) -> str:
    return f"naive:{customer}:{period}"


def invoice_customer(job: Job, *, lock_ttl: timedelta, lines_per_request: int) -> bool:
    """Invoice and mail one customer, unless the lock is taken; return whether this call did the work."""
    redis = get_redis_connection("leases")
    key = lock_key(job.customer, job.period)
    if not redis.set(key, "locked", nx=True, px=lock_ttl):
        tell("naive.busy", job)
        return False
    tell("naive.locked", job)
    try:
        gross_minor = sum(job.net_minor) + ask_tax_minor(job, lines_per_request)
        tell("naive.saving", job)
        number = save_invoice(job, gross_minor)
        tell("naive.saved", job)
        send_mail(job, number)
        tell("naive.mailed", job)
    finally:
        redis.delete(key)
        tell("naive.unlocked", job)
    return True


def tell(event: str, job: Job) -> None:
    log.info("%s %s", event, job.customer, extra={"event": event, "customer": job.customer})


def ask_tax_minor(job: Job, lines_per_request: int) -> int:
    tax = Decimal(0)
    with httpx.Client(base_url=settings.BILLING_TAX_URL, timeout=60) as client:
        for start in range(0, len(job.net_minor), lines_per_request):
            group = dict(enumerate(job.net_minor[start : start + lines_per_request], start))
            lines = [{"key": str(key), "category": "standard", "net_minor": net} for key, net in group.items()]
            question = {"document": f"{job.customer}-{job.period}-{start}", "currency": "EUR", "lines": lines}
            answer = client.post("/v1/taxes", json=question).raise_for_status().json()
            tax += sum((Decimal(line["rate"]) * group[int(line["key"])] for line in answer["lines"]), Decimal(0))
            tell("naive.taxed", job)
    return int(tax.quantize(Decimal(1), ROUND_HALF_UP))


def save_invoice(job: Job, gross_minor: int) -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO naive_invoice (customer, period, gross_minor) VALUES (%s, %s, %s) RETURNING id",
            [job.customer, job.period, gross_minor],
        )
        return int(cursor.fetchone()[0])


def send_mail(job: Job, number: int) -> None:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = settings.DEFAULT_FROM_EMAIL, job.email, f"Invoice {number}"
    mail.set_content(f"Your invoice for {job.period} is ready.")
    with smtplib.SMTP(settings.EMAIL_HOST, settings.EMAIL_PORT, timeout=10) as client:
        client.send_message(mail)
