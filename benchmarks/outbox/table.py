"""Filling and emptying the table that is measured. Everything in it is lost: use a database of its own."""

from django.db import connection


def fill(count: int, *, state: str = "pending", due: str = "now()", channel: str = "noop", prefix: str = "k") -> None:
    """`count` messages of about 600 bytes, in the order of their ids."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO outbox_message (channel, dedupe_key, digest, payload, state, sent_at, available_at)"
            f" SELECT %s, %s || n, repeat('d', 64), jsonb_build_object('raw', repeat('x', 450)), %s,"
            f" CASE WHEN %s = 'sent' THEN now() END, {due} FROM generate_series(1, %s) AS n",
            [channel, prefix, state, state, count],
        )


def empty() -> None:
    """A table as new."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE outbox_message, outbox_decision RESTART IDENTITY")


def settle() -> None:
    """Statistics and visibility as autovacuum keeps them, and no write of an earlier run in the way."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE outbox_message")
        cursor.execute("CHECKPOINT")


def left() -> int:
    """How many messages of the run are not sent yet."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM outbox_message WHERE state <> 'sent' AND available_at <= now()")
        return int(cursor.fetchone()[0])
