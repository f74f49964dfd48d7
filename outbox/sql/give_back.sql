-- give_back: messages this claim took and surely never started to hand over. Due again at once, attempts and
-- the time for them as before.
-- Also from in_doubt: a drainer that was frozen and swept can still say that it had not begun.
-- With %(delay)s when its receiver is away, so that it makes room for messages to others.
-- Gives the ids that went back.
UPDATE outbox_message
   SET state = 'pending',
       claimed_until = NULL,
       available_at = CASE WHEN %(delay)s > interval '0' THEN clock_timestamp() + %(delay)s ELSE available_at END,
       attempts = attempts - CASE WHEN state = 'claimed' THEN 0 ELSE 1 END,
       first_attempt_at = CASE WHEN state <> 'claimed' AND attempts = 1 THEN NULL ELSE first_attempt_at END
 WHERE id = ANY(ARRAY(
         SELECT id
           FROM outbox_message
          WHERE id = ANY(%(ids)s::bigint[]) AND claim = %(claim)s AND state IN ('claimed', 'sending', 'in_doubt')
            FOR UPDATE SKIP LOCKED))
RETURNING id
