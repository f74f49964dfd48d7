-- mark_sent: the receiver has these messages. By primary key and claim number; never through the small index on held
-- rows, which is full of dead entries (a join here is three times slower than = ANY).
-- The sweep keeps the claim number. So the proof of the drainer that really sent a message counts however late it
-- comes, also while the message waits to be sent again; under a newer claim it changes nothing.
-- Gives the ids that are sent now, also those that an earlier try of this statement marked, whose answer got lost.
UPDATE outbox_message
   SET state = 'sent',
       claimed_until = NULL,
       sent_at = coalesce(sent_at, clock_timestamp()),
       provider_id = coalesce(%(provider_ids)s::jsonb ->> id::text, ''),
       refused = coalesce(%(refused)s::jsonb -> id::text, '{}')
 WHERE id = ANY(%(ids)s)
   AND claim = %(claim)s
   AND state IN ('sending', 'in_doubt', 'pending', 'sent')
   AND (SELECT CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
                    THEN set_config('synchronous_commit', 'on', true) ELSE 'on' END) IS NOT NULL
RETURNING id
