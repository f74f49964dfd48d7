-- cancel: what is not handed over yet, and now never will be. A drainer that claimed it meets its intent refused.
-- Not a message that waits to be sent again after an unknown outcome (resend_until): the receiver may have it.
-- Gives 'cancelled' for a message that is cancelled now; no row for one that is beyond recall or does not exist.
UPDATE outbox_message
   SET state = 'cancelled', claimed_until = NULL
 WHERE dedupe_key = %(dedupe_key)s
   AND state IN ('pending', 'claimed', 'dead', 'cancelled')
   AND resend_until IS NULL
RETURNING state
