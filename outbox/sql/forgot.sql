-- forgot: what looks unsent, and may have been sent in the history that is lost. A drainer of before may be handing it
-- over right now: so nobody may send it again before the longest possible claim has ended.
-- Only of what was being sent the claim stays, so that a late proof counts: nothing else can be proved or given back.
-- Also what is dead: it may have been requeued and sent.
-- Not what was never due until now, and not the channels that send again when in doubt (%(resending)s).
UPDATE outbox_message
   SET state = 'in_doubt',
       claim = CASE WHEN state = 'sending' THEN claim END,
       claimed_until = NULL,
       available_at = clock_timestamp() + %(max_ttl)s,
       last_error = 'the database lost a part of its history, in which it may have been sent'
                    || CASE WHEN last_error = '' THEN '' ELSE '; last: ' || last_error END
 WHERE (state IN ('claimed', 'sending', 'dead') OR state = 'pending' AND (attempts > 0 OR available_at <= clock_timestamp()))
   AND channel <> ALL(%(resending)s::text[])
