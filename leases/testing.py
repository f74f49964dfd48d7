"""For the tests of projects that use leases: work under a lease without Redis, also inside a test's transaction.

    from leases.testing import holding

    class InvoiceTest(TestCase):
        def test_total(self) -> None:
            with holding("customer:42"):
                Invoice.objects.create(customer_id=42)

`hold()` refuses to run inside a transaction, which a `TestCase` always is; inside `holding()` it finds the lease held,
and so do `@leased` actors that are called directly. Everything else is as in production: the fence has a row, writes
present the token, the triggers check every row, instances read before the block are stale inside it.

What a `TestCase` cannot show: it is one transaction, so what was presented once stays so until the block ends, and raw
SQL that forgot `lease.transaction()` passes. Test that in a `TransactionTestCase`, where `holding()` works as well, or
use `hold()` there, with a Redis. Nor is anything committed in it: an instance that moved to another resource needs the
lease on the former one still. Fixtures of fenced rows (`fixtures = [...]`) are loaded before any block; load them
with `leases.bypass()` in `setUpTestData` instead.
"""

import math
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.db import connections

from leases import fence
from leases.clock import boottime
from leases.conf import conf
from leases.holding import current_lease, lent
from leases.lease import Lease
from leases.models import Incident
from leases.resources import validated
from leases.stopping import Job

# As high as a token of Redis, whose tokens are its clock in microseconds.
_RAISE = """
INSERT INTO leases_fence AS f (resource, token, holder, changed_at)
VALUES (%(resource)s, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, %(holder)s, clock_timestamp())
ON CONFLICT (resource) DO UPDATE
   SET token = greatest(f.token + 1, excluded.token), holder = excluded.holder, changed_at = excluded.changed_at
RETURNING token
"""
_TAKE_BACK = """
SELECT set_config('leases.presented', (v #- ARRAY['tokens', %(resource)s])::text, true)
  FROM (SELECT nullif(current_setting('leases.presented', true), '')::jsonb) AS p(v) WHERE v IS NOT NULL
"""


class _HeldInTest(Lease):
    """A lease that Redis knows nothing of: it never expires, and its loss is told to nobody."""

    def renewed(self, asked_at: float) -> None:
        self.deadline = self.next_renewal = math.inf

    def remaining(self) -> timedelta:
        return self.ttl if self.is_held else timedelta(0)

    def lose(self, detector: Incident.Detector) -> None:
        self._end(detector)

    def release(self, *, linger: timedelta = timedelta(0)) -> None:
        pass


@contextmanager
def holding(resource: str, *, using: str = "default") -> Iterator[Lease]:
    """Hold a lease on `resource` around the body, without Redis and inside any transaction; nest it for several.

    The lease cannot expire. To see a job that loses it, call `lease.lose(Incident.Detector.RENEWAL_REFUSED)`; to see
    what the database refuses then, raise the fence (`Fence.objects.update(token=F("token") + 1)`). Time limits of a
    transaction are off, so that a debugger may stop inside it. Raises InvalidResource.
    """
    name = validated(resource)
    mine = current_lease(name, using=using)
    if mine is not None:
        yield mine
        return
    connection = connections[using]
    holder = secrets.token_hex(16)
    with connection.cursor() as cursor:
        cursor.execute(_RAISE, {"resource": name, "holder": holder})
        token: int = cursor.fetchone()[0]
    lease = _HeldInTest(name, holder=holder, token=token, ttl=conf.TTL, using=using, asked_at=boottime(), job=Job())
    with lent(lease), connection.execute_wrapper(_without_time_limits):
        yield lease
    if connection.in_atomic_block and not connection.needs_rollback:
        with connection.cursor() as cursor:
            cursor.execute(_TAKE_BACK, {"resource": name})


def _without_time_limits(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
    # They would last until the end of the test's transaction, and end the connection under who thinks for 2 s.
    return execute(sql, {**params, "limit": "0"} if sql is fence.PRESENT else params, many, context)
