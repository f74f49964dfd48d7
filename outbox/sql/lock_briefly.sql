-- lock_briefly: for a transaction that is about to lock messages. If its client stands still for longer than %(idle_ms)s
-- milliseconds, the server ends it: a drainer that has something to mark waits for that lock, with all it has in hand.
SELECT set_config('idle_in_transaction_session_timeout', %(idle_ms)s::text, true)
  FROM pg_settings
 WHERE name = 'idle_in_transaction_session_timeout' AND NOT setting::int BETWEEN 1 AND %(idle_ms)s
