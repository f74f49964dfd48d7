-- intent: say that these messages are about to be handed over. Committed before the first byte leaves.
-- A row that is not given back is not this claim's any more, or past its deadline, or is just being cancelled by a
-- transaction that has not committed (passed by, so that nobody's long transaction holds up the drain): not to be sent.
-- Attempts count here, not at the claim: a drainer that dies holding a batch has tried none of it.
-- state || '': by primary key only. The small index on held rows looks cheaper to a planner that expects a handful, and is
-- full of dead entries while some old snapshot keeps them: ten times slower.
-- Whatever the session's setting, the commit is on disk before it is reported.
-- Gives id and attempts.
UPDATE outbox_message
   SET state = 'sending',
       attempts = attempts + 1,
       first_attempt_at = coalesce(first_attempt_at, clock_timestamp())
 WHERE id = ANY(ARRAY(
         SELECT id
           FROM outbox_message
          WHERE id = ANY(%(ids)s) AND claim = %(claim)s AND state || '' = 'claimed'
            FOR UPDATE SKIP LOCKED))
   AND claimed_until > clock_timestamp()
   AND coalesce(least(deadline_at, resend_until) > clock_timestamp(), true)
   AND (SELECT CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
                    THEN set_config('synchronous_commit', 'on', true) ELSE 'on' END) IS NOT NULL
RETURNING id, attempts
