-- mark_and_intend: the receiver has the messages %(accepted)s, and %(ids)s are about to be handed over. One commit for
-- both, since what a thread has handed over and what it hands over next become known at the same moment.
--
-- The mark. By primary key and claim number; never through the small index on held rows, which is full of dead entries
-- (a join here is three times slower than = ANY).
-- The sweep keeps the claim number. So the proof of the drainer that really sent a message counts however late it
-- comes, also while the message waits to be sent again; under a newer claim it changes nothing.
-- Marked is also what an earlier try of this statement marked, whose answer got lost.
--
-- The intent, committed before the first byte leaves.
-- A row that is not given back is not this claim's any more, or past its deadline, or is just being cancelled by a
-- transaction that has not committed (passed by, so that nobody's long transaction holds up the drain): not to be sent.
-- Attempts count here, not at the claim: a drainer that dies holding a batch has tried none of it.
-- state || '': by primary key only. The small index on held rows looks cheaper to a planner that expects a handful, and is
-- full of dead entries while some old snapshot keeps them: ten times slower.
-- count(*) FROM marked: after the marks, which may wait for a row; nobody can be waiting for an intent meanwhile.
--
-- Whatever the session's setting, the commit is on disk before it is reported.
-- Gives the ids that are sent now, without a number, and those that may be handed over, with that of the attempt, and
-- how many seconds are left to do so; null where that is no matter of the message's.
WITH marked AS (
    UPDATE outbox_message
       SET state = 'sent',
           claimed_until = NULL,
           sent_at = coalesce(sent_at, clock_timestamp()),
           provider_id = coalesce(%(provider_ids)s::jsonb ->> id::text, ''),
           refused = coalesce(%(refused)s::jsonb -> id::text, '{}')
     WHERE id = ANY(%(accepted)s::bigint[])
       AND claim = %(accepted_claim)s
       AND state IN ('sending', 'in_doubt', 'pending', 'sent')
    RETURNING id),
intended AS (
    UPDATE outbox_message
       SET state = 'sending',
           attempts = attempts + 1,
           first_attempt_at = coalesce(first_attempt_at, clock_timestamp())
     WHERE id = ANY(ARRAY(
             SELECT id
               FROM outbox_message
              WHERE id = ANY(%(ids)s::bigint[]) AND claim = %(claim)s AND state || '' = 'claimed'
                AND (SELECT count(*) FROM marked) >= 0
                FOR UPDATE SKIP LOCKED))
       AND claimed_until > clock_timestamp()
       AND coalesce(least(deadline_at, resend_until) > clock_timestamp(), true)
    RETURNING id, attempts, extract(epoch FROM least(deadline_at, resend_until) - clock_timestamp())::float8 AS left_s)
SELECT id, attempts, left_s
  FROM (SELECT id, NULL AS attempts, NULL AS left_s FROM marked
        UNION ALL
        SELECT id, attempts, left_s FROM intended) AS both_of_them
 WHERE (SELECT CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
                    THEN set_config('synchronous_commit', 'on', true) ELSE 'on' END) IS NOT NULL
