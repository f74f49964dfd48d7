"""The incident's worker as an actor, on a queue of its own that no ordinary worker reads."""

import dramatiq
from django.utils import timezone

from billing import rating
from billing.conf import conf
from billing.models import Customer
from billing.periods import Period
from leases.conf import conf as leases_conf
from project.replay import naive

QUEUE = "replay-naive"


@dramatiq.actor(queue_name=QUEUE, max_retries=0)
def invoice_naively(customer_id: int, period: str) -> None:
    """Rate the customer's usage as everybody does, then do what the incident's worker did."""
    customer = Customer.objects.get(pk=customer_id)
    rated = rating.rate(customer, Period.parse(period), timezone.now(), using="default")
    net_minor = [line.net_minor for line in rated.lines if line.net_minor]
    job = naive.Job(str(customer_id), period, customer.email, net_minor)
    naive.invoice_customer(job, lock_ttl=leases_conf.TTL, lines_per_request=conf.TAX_LINES_PER_REQUEST)
