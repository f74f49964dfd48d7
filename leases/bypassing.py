"""Writing past the fences, on purpose and on record: for migrations, restores and repairs.

The triggers honour a bypass only in the transaction that opened it, and the audit row comes first in that transaction:
a database role that may not insert into `leases_intervention` cannot open one.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections, transaction

from leases import interventions
from leases.models import Intervention

_OPEN = """
WITH earlier AS MATERIALIZED (
  SELECT nullif(current_setting('leases.presented', true), '')::jsonb AS v)
SELECT set_config('leases.presented', (
         CASE WHEN v->>'xact' = pg_current_xact_id()::text THEN v
              ELSE jsonb_build_object('xact', pg_current_xact_id()::text, 'tokens', '{}'::jsonb) END
         || '{"bypass": true}')::text, true)
  FROM earlier
"""
_CLOSE = """
SELECT set_config('leases.presented', (current_setting('leases.presented')::jsonb - 'bypass')::text, true)
"""


class _Thread(threading.local):
    def __init__(self) -> None:
        self.open: set[str] = set()


_thread = _Thread()


@contextmanager
def bypass(*, reason: str, by: str | None = None, using: str = "default") -> Iterator[None]:
    """Let this thread write fenced rows of `using` without any lease, in a transaction that ends with the body.

        with leases.bypass(reason="restore of invoices lost on 3 May"):
            call_command("loaddata", "invoices.json")

    `reason` and `by` (default: who runs the process) are kept, unless the body fails, which undoes everything. Nothing
    tells a holder: make sure that nobody works on the same rows. In a migration, depend on `("leases", "0001_initial")`
    and call it with the schema editor's alias. Raises ReasonMissing.
    """
    why = interventions.validated_reason(reason)
    who = interventions.operator() if by is None else by
    with transaction.atomic(using=using):
        interventions.record(Intervention.Action.BYPASS, reason=why, by=who, using=using)
        if using in _thread.open:
            yield
            return
        _run(_OPEN, using)
        _thread.open.add(using)
        try:
            yield
        finally:
            _thread.open.discard(using)
        # What is going to be rolled back takes the bypass with it, and Django lets nothing run before.
        if not transaction.get_rollback(using):
            _run(_CLOSE, using)


def is_bypassed(using: str) -> bool:
    """Say whether this thread is inside a bypass on `using`."""
    return using in _thread.open


def _run(statement: str, using: str) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute(statement)
