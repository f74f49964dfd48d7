-- identity: which database this is, and which of its histories.
-- The timeline is read from the write-ahead log: pg_control_checkpoint() lags behind after a promotion.
-- The oids are others after a restore on the same server: the database's after a copy by CREATE DATABASE ... TEMPLATE,
-- the table's after pg_restore made it anew.
-- Gives system identifier, timeline, the oid of the database, and that of the table which keeps all four.
SELECT (SELECT system_identifier FROM pg_control_system())::text,
       ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int,
       (SELECT oid FROM pg_database WHERE datname = current_database())::bigint,
       'outbox_databaseidentity'::regclass::oid::bigint
