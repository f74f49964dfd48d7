-- mark_unsent: one message that the receiver refused, or that was not handed over, or whose outcome is unknown.
-- What follows is decided here, by this clock and the budgets:
--   refused for good                            -> dead
--   refused for now, not handed over            -> pending after %(delay)s, while both budgets last; then dead
--   unknown, the receiver recognises repetition -> pending after %(delay)s, while the key's window and budgets last
--   unknown otherwise                           -> in_doubt
-- A message with an unknown attempt behind it (resend_until) never becomes dead: it is in doubt.
-- An attempt that never reached the receiver (%(refund)s) and is made again is not counted, and leaves no entry in the
-- history; it ends in dead for no budget: a receiver may be away for longer than retries go on. The time runs from the
-- first that reached it. One that leaves a doubt for a person is an attempt, with its entry.
-- Gives the new state, or no row: a newer claim has it, or somebody decided.
UPDATE outbox_message AS m
   SET state = CASE WHEN d.again THEN 'pending' WHEN d.doubtful THEN 'in_doubt' ELSE 'dead' END,
       claimed_until = NULL,
       available_at = CASE WHEN d.again THEN clock_timestamp() + %(delay)s ELSE clock_timestamp() END,
       resend_until = CASE WHEN %(outcome)s = 'unknown' AND d.again
                           THEN coalesce(m.resend_until, d.window_end) ELSE m.resend_until END,
       first_attempt_at = CASE WHEN %(refund)s AND m.attempts = 1 AND NOT d.doubtful THEN NULL
                               ELSE m.first_attempt_at END,
       attempts = m.attempts - CASE WHEN %(refund)s AND d.again THEN 1 ELSE 0 END,
       last_error = %(detail)s,
       history = CASE WHEN %(refund)s AND d.again THEN m.history ELSE m.history || jsonb_build_object(
                        'attempt', m.attempts, 'at', clock_timestamp(), 'outcome', %(outcome)s::text,
                        'answer', %(detail)s::text, 'drainer', m.drainer) END
  FROM (SELECT id, doubtful, window_end,
               %(outcome)s <> 'refused permanently'
               AND (NOT doubtful OR coalesce(window_end > clock_timestamp() + %(delay)s, false))
               AND (%(refund)s OR attempts < %(max_attempts)s
                                  AND first_attempt_at + %(retry_for)s > clock_timestamp() + %(delay)s) AS again
          FROM (SELECT id, attempts, first_attempt_at,
                       %(outcome)s = 'unknown' OR resend_until IS NOT NULL AS doubtful,
                       coalesce(resend_until, CASE WHEN %(resend_always)s THEN timestamptz '9000-01-01'
                                                   ELSE first_attempt_at + %(key_window)s END) AS window_end
                  FROM outbox_message
                 WHERE id = %(id)s) AS now) AS d
 WHERE m.id = d.id
   AND m.claim = %(claim)s
   AND m.state IN ('sending', 'in_doubt')
   AND (SELECT CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
                    THEN set_config('synchronous_commit', 'on', true) ELSE 'on' END) IS NOT NULL
RETURNING m.state
