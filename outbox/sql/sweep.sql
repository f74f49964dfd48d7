-- sweep: what a drainer held beyond its time, because it died or hangs; also a claim that ends further ahead than any
-- claim may, which a clock that was wrong has written.
--   claimed -> pending: it was not handed over.
--   sending -> in_doubt: it may have been. Or pending, where the receiver recognises a repetition of its key
--              (%(windows)s: channel -> seconds since the first attempt, null for always).
-- From available_at on, no drainer can still be handing it over, and a person may send it again: that is now, when the
-- claim ran out, and the longest possible claim from now, when its end was nonsense.
-- The claim number stays, so that the late proof of the drainer that sent it still counts.
-- Gives id, channel, dedupe_key, state, claim.
UPDATE outbox_message AS m
   SET state = CASE WHEN d.held = 'claimed' OR d.again THEN 'pending' ELSE 'in_doubt' END,
       claimed_until = NULL,
       available_at = CASE WHEN d.held = 'claimed' OR d.again THEN m.available_at
                           WHEN d.far_ahead THEN clock_timestamp() + %(max_ttl)s ELSE clock_timestamp() END,
       resend_until = CASE WHEN d.held = 'sending' AND d.again THEN d.window_end ELSE m.resend_until END,
       last_error = CASE WHEN d.held = 'sending'
                         THEN 'the drainer ' || m.drainer || ' did not say in time whether it was handed over'
                         ELSE m.last_error END,
       history = CASE WHEN d.held = 'sending' THEN m.history || jsonb_build_object(
                        'attempt', m.attempts, 'at', clock_timestamp(), 'outcome', 'unknown',
                        'answer', 'the claim ran out', 'drainer', m.drainer) ELSE m.history END
  FROM (SELECT id, state AS held, far_ahead, window_end, coalesce(window_end > clock_timestamp(), false) AS again
          FROM (SELECT id, state, claimed_until > clock_timestamp() AS far_ahead,
                       coalesce(resend_until,
                                CASE WHEN %(windows)s::jsonb ? channel
                                     THEN coalesce(first_attempt_at
                                                   + (%(windows)s::jsonb ->> channel)::float8 * interval '1 second',
                                                   timestamptz '9000-01-01') END) AS window_end
                  FROM outbox_message
                 WHERE state IN ('claimed', 'sending')
                   AND (claimed_until < clock_timestamp() OR claimed_until > clock_timestamp() + %(max_ttl)s)
                 ORDER BY claimed_until
                 LIMIT 1000
                   FOR UPDATE SKIP LOCKED) AS expired) AS d
 WHERE m.id = d.id
RETURNING m.id, m.channel, m.dedupe_key, m.state, m.claim
