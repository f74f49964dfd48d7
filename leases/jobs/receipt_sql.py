"""The statements about receipts, named and described."""

import json
from datetime import timedelta
from typing import Any

from django.db import connections

from leases import fence

# What a finished or parked run left, without counting: for a caller that would hold the counted row until it commits.
_LOOK = "SELECT state, outcome FROM leases_receipt WHERE key = %s AND actor = %s AND state <> 'started'"

# The same, and counts that it was asked for. No fsync: a count that a power cut loses hurts nobody.
_ASK = """
UPDATE leases_receipt r SET asked_again = r.asked_again + 1, last_asked_at = clock_timestamp()
 WHERE r.key = %s AND r.actor = %s AND r.state <> 'started' AND set_config('synchronous_commit', 'off', true) = 'off'
RETURNING r.state, r.outcome
"""

_INSERT = "SELECT leases_insert_receipt(%s, %s, %s, %s, %s, %s::interval)"

_KEEP_OUTCOME = "UPDATE leases_receipt SET outcome = %(outcome)s::jsonb WHERE id = %(id)s"

# A run whose effect is outside the database begins, under the lease of its key. `may_repeat` is what on_crash said.
_START = """
WITH limits AS MATERIALIZED (
  SELECT CASE WHEN current_setting('synchronous_commit') <> 'remote_apply'
              THEN set_config('synchronous_commit', 'on', true) END),
started AS (
  INSERT INTO leases_receipt AS r
         (key, actor, state, reason, attempts, token, message_id, ran_at, asked_again, expires_at)
  SELECT %(key)s, %(actor)s, 'started', '', 1, %(token)s, %(message_id)s, clock_timestamp(), 0,
         clock_timestamp() + %(retention)s::interval
    FROM limits
  ON CONFLICT (key) DO UPDATE
     SET state = CASE WHEN %(may_repeat)s OR r.token = excluded.token THEN 'started' ELSE 'parked' END,
         attempts = r.attempts + CASE WHEN %(may_repeat)s THEN 1 ELSE 0 END,
         token = CASE WHEN %(may_repeat)s THEN excluded.token ELSE r.token END,
         message_id = CASE WHEN %(may_repeat)s THEN excluded.message_id ELSE r.message_id END,
         ran_at = CASE WHEN %(may_repeat)s THEN excluded.ran_at ELSE r.ran_at END,
         reason = CASE WHEN %(may_repeat)s THEN ''
                  ELSE 'the run that began at ' || r.ran_at || ' ended without saying whether it took effect' END
   WHERE r.state = 'started' AND r.actor = excluded.actor
  RETURNING r.state, r.attempts)
SELECT state, attempts FROM started
"""

# Guarded by the token: the end of a run that was replaced must not be taken for that of its successor. A run that was
# parked meanwhile and now says how it ended is believed.
_FINISH = """
WITH limits AS MATERIALIZED (
  SELECT CASE WHEN current_setting('synchronous_commit') <> 'remote_apply'
              THEN set_config('synchronous_commit', 'on', true) END)
UPDATE leases_receipt r SET state = %(state)s, outcome = %(outcome)s::jsonb, reason = %(reason)s
  FROM limits
 WHERE r.key = %(key)s AND r.token = %(token)s AND r.state <> 'done'
"""

_FORGET = "DELETE FROM leases_receipt WHERE key = %(key)s AND token = %(token)s AND state = 'started'"


def look(key: str, actor: str, *, using: str) -> tuple[str, Any] | None:
    """Return the state and outcome of a finished or parked key, None if there is none."""
    return _left(_one(_LOOK, (key, actor), using))


def ask(key: str, actor: str, *, using: str) -> tuple[str, Any] | None:
    """Do as `look()`, and count that the key was asked for again."""
    return _left(_one(_ASK, (key, actor), using))


def insert(
    key: str,
    actor: str,
    *,
    message_id: str,
    wait: timedelta,
    idle: timedelta,
    retention: timedelta | None,
    using: str,
) -> int | None:
    """Insert the receipt of a run in the open transaction and return its id; None if there is one already.

    Raises TableShadowed, or django.db.DatabaseError: 55P03 when another run has not ended within `wait`, 40001 at
    stricter isolation.
    """
    row = _one(_INSERT, (key, actor, message_id, _ms(wait), _ms(idle), retention), using)
    receipt: int | None = row[0] if row else None
    if receipt == 0:
        fence.refuse_shadow(using, tables=("leases_receipt",))
    return receipt


def keep_outcome(receipt: int, outcome: str, *, using: str) -> None:
    """Write what the run returned to its receipt, in the same transaction."""
    with connections[using].cursor() as cursor:
        cursor.execute(_KEEP_OUTCOME, {"id": receipt, "outcome": outcome})


def start(
    key: str,
    actor: str,
    *,
    token: int,
    message_id: str,
    retention: timedelta | None,
    may_repeat: bool,
    using: str,
) -> tuple[str, int] | None:
    """Declare that a run is about to take effect: its state ("started" or "parked") and which attempt it is.

    None when the receipt is another function's, or ended in this moment. Raises TableShadowed.
    """
    fence.refuse_shadow(using, tables=("leases_receipt",))
    row = _one(
        _START,
        {
            "key": key,
            "actor": actor,
            "token": token,
            "message_id": message_id,
            "retention": retention,
            "may_repeat": may_repeat,
        },
        using,
    )
    return (row[0], row[1]) if row else None


def finish(key: str, *, token: int, state: str, outcome: str | None, reason: str, using: str) -> bool:
    """Write how the run under `token` ended; False if another run has replaced it."""
    with connections[using].cursor() as cursor:
        cursor.execute(_FINISH, {"key": key, "token": token, "state": state, "outcome": outcome, "reason": reason})
        return bool(cursor.rowcount)


def forget(key: str, *, token: int, using: str) -> None:
    """Remove the declaration of a run that took no effect."""
    with connections[using].cursor() as cursor:
        cursor.execute(_FORGET, {"key": key, "token": token})


def _left(row: tuple[Any, ...] | None) -> tuple[str, Any] | None:
    # Django leaves jsonb as text, for its fields to decode.
    return (row[0], None if row[1] is None else json.loads(row[1])) if row else None


def _one(statement: str, values: dict[str, Any] | tuple[Any, ...], using: str) -> tuple[Any, ...] | None:
    with connections[using].cursor() as cursor:
        cursor.execute(statement, values)
        row: tuple[Any, ...] | None = cursor.fetchone()
        return row


def _ms(span: timedelta) -> str:
    return f"{max(1, round(span / timedelta(milliseconds=1)))}ms"
