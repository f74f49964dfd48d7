-- cancel: what is not handed over yet, and now never will be. A drainer that claimed it meets its intent refused.
-- Not a message that waits to be sent again after an unknown outcome (resend_until): the receiver may have it.
-- Gives a row for a message that is cancelled now, and whether it was surely never sent: one that was in doubt until a
-- person decided may have been. No row for one that is beyond recall or does not exist.
UPDATE outbox_message
   SET state = 'cancelled', claimed_until = NULL
 WHERE dedupe_key = %(dedupe_key)s
   AND state IN ('pending', 'claimed', 'dead', 'cancelled')
   AND resend_until IS NULL
RETURNING NOT EXISTS (SELECT FROM outbox_decision d WHERE d.message_id = outbox_message.id AND d.state_before = 'in_doubt')
