"""The database function with which a transaction presents a token: planned once per session, not at every call."""

#: Version 1, to create and to drop; migrations refer to it, so it must not change.
PRESENT = (
    """CREATE FUNCTION leases_present(wanted text, proved bigint, time_limit text) RETURNS boolean
       LANGUAGE plpgsql AS $$
       DECLARE
         fence oid;
         this_xact text;
         presented jsonb := nullif(current_setting('leases.presented', true), '')::jsonb;
       BEGIN
         PERFORM set_config('lock_timeout', time_limit, true),
                 set_config('idle_in_transaction_session_timeout', time_limit, true),
                 set_config('tcp_user_timeout', time_limit, true),
                 set_config('synchronous_commit', 'on', true);
         SELECT f.tableoid INTO fence FROM leases_fence f
          WHERE f.resource = wanted AND f.token = proved FOR SHARE OF f;
         IF NOT FOUND OR EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = fence AND c.relpersistence = 't') THEN
           RETURN false;
         END IF;
         this_xact := pg_current_xact_id()::text;
         IF presented->>'xact' IS DISTINCT FROM this_xact OR presented->>'fence' <> fence::text THEN
           presented := '{}';
         END IF;
         presented := presented || jsonb_build_object(
           'xact', this_xact,
           'fence', fence::text,
           'tokens', coalesce(presented->'tokens', '{}') || jsonb_build_object(wanted, proved::text));
         PERFORM set_config('leases.presented', presented::text, true);
         RETURN true;
       END $$""",
    "DROP FUNCTION leases_present(text, bigint, text)",
)
