-- publish: the message of a key, once. No row: the key is taken.
-- Waits while another transaction that published the same key is undecided.
-- Gives id, created_at, available_at where that is another moment, and whether it is due.
INSERT INTO outbox_message (channel, dedupe_key, digest, payload, available_at, deadline_at)
VALUES (%(channel)s, %(dedupe_key)s, %(digest)s, %(payload)s::jsonb,
        coalesce(%(not_before)s, statement_timestamp()), %(deadline)s)
ON CONFLICT (dedupe_key) DO NOTHING
RETURNING id, created_at, nullif(available_at, created_at), available_at <= statement_timestamp()
