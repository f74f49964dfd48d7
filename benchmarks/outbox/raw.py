"""The yardstick: the same claim, intent and mark by a bare psycopg loop, which does nothing else."""

import time
from typing import Any

import psycopg
from django.db import connection

CLAIM = """
UPDATE outbox_message
   SET state = 'claimed', claim = %(claim)s, claimed_until = clock_timestamp() + interval '60 s'
 WHERE id = ANY(ARRAY(SELECT id FROM outbox_message
                       WHERE state = 'pending' AND channel = 'noop' AND available_at <= statement_timestamp()
                       ORDER BY available_at, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
RETURNING id, payload
"""
INTENT = """
UPDATE outbox_message SET state = 'sending', attempts = attempts + 1
 WHERE id = ANY(%(ids)s) AND claim = %(claim)s AND state = 'claimed' AND claimed_until > clock_timestamp()
"""
MARK = """
UPDATE outbox_message SET state = 'sent', claimed_until = NULL, sent_at = clock_timestamp()
 WHERE id = ANY(%(ids)s) AND claim = %(claim)s AND state = 'sending'
"""

CLAIM_ALL = """
UPDATE outbox_message SET state = 'claimed', claim = 1, claimed_until = now() + interval '1 h' RETURNING id
"""
MARK_AND_INTEND = """
WITH marked AS (UPDATE outbox_message SET state = 'sent', claimed_until = NULL, sent_at = clock_timestamp()
                 WHERE id = %(before)s AND claim = 1 AND state = 'sending')
UPDATE outbox_message SET state = 'sending', attempts = attempts + 1
 WHERE id = %(id)s AND claim = 1 AND state = 'claimed' AND claimed_until > clock_timestamp()
"""


def database() -> dict[str, Any]:
    """Where Django connects to, for psycopg."""
    given = connection.get_connection_params()
    return {n: given[n] for n in ("host", "port", "user", "password", "dbname") if given.get(n)}


def drain(batch_size: int, micro_batch: int) -> float:
    """Drain everything; the seconds it took."""
    with psycopg.connect(**database(), autocommit=True) as raw:
        began = time.perf_counter()
        claim = 0
        while True:
            claim += 1
            rows = raw.execute(CLAIM, {"claim": claim, "limit": batch_size}).fetchall()
            if not rows:
                return time.perf_counter() - began
            ids = sorted(row[0] for row in rows)
            for start in range(0, len(ids), micro_batch):
                values = {"ids": ids[start : start + micro_batch], "claim": claim}
                raw.execute(INTENT, values)
                raw.execute(MARK, values)


def claim_all() -> list[int]:
    """Claim every message for an hour; their ids."""
    with psycopg.connect(**database(), autocommit=True) as raw:
        return [row[0] for row in raw.execute(CLAIM_ALL)]


def declared() -> float:
    """Hand everything over to nobody, with one commit for each intent and the mark before it; the seconds it took."""
    began = time.perf_counter()
    before: int | None = None
    with psycopg.connect(**database(), autocommit=True) as raw:
        for id in [*claim_all(), None]:
            raw.execute(MARK_AND_INTEND, {"before": before, "id": id})
            before = id
    return time.perf_counter() - began
