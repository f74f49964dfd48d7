-- identity: which database this is, and which of its histories.
-- The timeline is read from the write-ahead log: pg_control_checkpoint() lags behind after a promotion.
-- Gives system identifier and timeline.
SELECT (SELECT system_identifier FROM pg_control_system())::text,
       ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int
