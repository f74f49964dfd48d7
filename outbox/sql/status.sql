-- status: what is unfinished, per channel. Four parts, since each has a small index of its own; what is retried is also
-- among what is due or later.
-- Gives channel, due, later, claimed, sending, in_doubt, dead, age of the oldest due, age of the oldest in doubt, how many
-- are retried, and what was said to one that was tried of late.
WITH unfinished AS (
    SELECT channel,
           CASE WHEN available_at <= statement_timestamp() THEN 'due' ELSE 'later' END AS stands,
           count(*) AS number, min(available_at) AS since
      FROM outbox_message WHERE state = 'pending' GROUP BY 1, 2
    UNION ALL
    SELECT channel, state, count(*), NULL
      FROM outbox_message WHERE state IN ('claimed', 'sending') GROUP BY 1, 2
    UNION ALL
    SELECT channel, state, count(*), min(available_at)
      FROM outbox_message WHERE state IN ('in_doubt', 'dead') GROUP BY 1, 2
    UNION ALL
    SELECT channel, 'retrying', count(*), NULL
      FROM outbox_message WHERE state = 'pending' AND last_error <> '' GROUP BY 1)
SELECT channel,
       coalesce(sum(number) FILTER (WHERE stands = 'due'), 0)::bigint,
       coalesce(sum(number) FILTER (WHERE stands = 'later'), 0)::bigint,
       coalesce(sum(number) FILTER (WHERE stands = 'claimed'), 0)::bigint,
       coalesce(sum(number) FILTER (WHERE stands = 'sending'), 0)::bigint,
       coalesce(sum(number) FILTER (WHERE stands = 'in_doubt'), 0)::bigint,
       coalesce(sum(number) FILTER (WHERE stands = 'dead'), 0)::bigint,
       extract(epoch FROM statement_timestamp() - min(since) FILTER (WHERE stands = 'due'))::float8,
       extract(epoch FROM statement_timestamp() - min(since) FILTER (WHERE stands = 'in_doubt'))::float8,
       coalesce(sum(number) FILTER (WHERE stands = 'retrying'), 0)::bigint,
       (SELECT last_error
          FROM outbox_message AS m
         WHERE m.state = 'pending' AND m.last_error <> '' AND m.channel = unfinished.channel
         ORDER BY available_at DESC
         LIMIT 1)
  FROM unfinished
 GROUP BY channel
 ORDER BY channel
