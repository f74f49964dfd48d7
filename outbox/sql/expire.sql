-- expire: messages that wait and may not be sent any more. Past their deadline they are dead. One with an unknown
-- attempt behind it, past the time in which its receiver recognises a repetition, is in doubt.
-- IS NOT NULL, twice: what the comparison says anyway, in the words of the small index, which is not used without them.
-- Gives id, channel, dedupe_key, state, claim.
UPDATE outbox_message
   SET state = CASE WHEN resend_until IS NULL THEN 'dead' ELSE 'in_doubt' END,
       available_at = clock_timestamp(),
       last_error = CASE WHEN deadline_at <= clock_timestamp() THEN 'its deadline passed before it could be sent'
                         ELSE 'the receiver no longer recognises it as a repetition; last: ' || last_error END
 WHERE id = ANY(ARRAY(
         SELECT id
           FROM outbox_message
          WHERE state = 'pending' AND (deadline_at IS NOT NULL OR resend_until IS NOT NULL)
            AND least(deadline_at, resend_until) <= statement_timestamp()
          ORDER BY least(deadline_at, resend_until)
          LIMIT 1000
            FOR UPDATE SKIP LOCKED))
RETURNING id, channel, dedupe_key, state, claim
