-- claim: take up to %(limit)s due messages of one channel, oldest due first, and no more once their payloads have
-- %(bytes)s, for %(ttl)s, under one new number.
-- Rows that another drainer is just taking, or that a caller is just cancelling, are passed by.
--
-- = ANY(ARRAY(...)): the inner SELECT runs once. With IN, a nested loop may run it again and claim more than the limit.
-- statement_timestamp(): the database's clock, and stable, so that the index ends the scan at the last due row.
-- There is no "id > last": a lower id may commit after a higher one.
-- tcp_user_timeout: the rows are sent before the commit. A drainer that is frozen and reads them no more would keep them
-- locked: no other drainer would take them, and whoever cancels one would wait. So the server hangs up on it.
-- pg_column_size(): as stored, so that nothing is read or unpacked for it. The first is taken whatever its size.
-- Gives the claimed rows, in no particular order; lag is how long each has been due, in seconds, and size its payload's.
UPDATE outbox_message
   SET state = 'claimed',
       claim = (SELECT nextval('outbox_claim')),
       claimed_until = clock_timestamp() + %(ttl)s,
       drainer = %(drainer)s
 WHERE id = ANY(ARRAY(
         SELECT id
           FROM (SELECT id, sum(size) OVER (ORDER BY available_at, id) - size AS before
                   FROM (SELECT id, available_at, pg_column_size(payload) AS size
                           FROM outbox_message
                          WHERE state = 'pending' AND channel = %(channel)s AND available_at <= statement_timestamp()
                            AND coalesce(least(deadline_at, resend_until) > clock_timestamp(), true)
                            AND (SELECT set_config('tcp_user_timeout', %(reading_ms)s::text, true)) IS NOT NULL
                          ORDER BY available_at, id
                          LIMIT %(limit)s
                            FOR UPDATE SKIP LOCKED) AS due) AS summed
          WHERE before < %(bytes)s))
RETURNING claim, id, dedupe_key, payload, extract(epoch FROM statement_timestamp() - available_at)::float8 AS lag,
          pg_column_size(payload) AS size
