-- prune: forget what old messages said, and keep that they were sent: the key stays used up for ever.
-- One batch along the primary key, from %(after)s; a row that somebody holds is passed by and comes next time.
-- Gives the ids that were emptied.
UPDATE outbox_message
   SET payload = NULL, history = '[]'
 WHERE id = ANY(ARRAY(
         SELECT id
           FROM outbox_message
          WHERE id > %(after)s
            AND state IN ('sent', 'cancelled')
            AND payload IS NOT NULL
            AND coalesce(sent_at, created_at) < statement_timestamp() - %(age)s
          ORDER BY id
          LIMIT %(limit)s
            FOR UPDATE SKIP LOCKED))
RETURNING id
