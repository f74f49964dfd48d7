"""The database's own functions, for tokens and receipts: planned once per session, not at every call.

Table names in them are not qualified, because a project may keep its tables in any schema, or one set per tenant. So a
session's temporary table of that name is found first, and refused: nobody else would see what is written there. Most
sessions have no temporary table at all, which is asked first.

Each is a pair of statements, to create and to drop it. Migrations refer to version 1, so it must not change.
"""

from django.db import connections

REGISTER = (
    """CREATE FUNCTION leases_register(
         wanted text, granted bigint, grantee text, ttl bigint, on_host text, by_pid bigint, by_process text,
         by_thread text, time_limit text)
       RETURNS TABLE (token bigint, holder text, host text, pid bigint, process_started text)
       LANGUAGE plpgsql AS $$
       #variable_conflict use_column
       DECLARE
         before text;
       BEGIN
         before := set_config('lock_timeout', time_limit, true);
         IF current_setting('synchronous_commit') <> 'remote_apply' THEN
           before := set_config('synchronous_commit', 'on', true);
         END IF;
         IF pg_my_temp_schema() <> 0 THEN
           IF EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.relpersistence = 't'
                         AND c.oid IN (to_regclass('leases_fence'), to_regclass('leases_leaserecord'))) THEN
             RETURN;
           END IF;
         END IF;
         INSERT INTO leases_fence AS f (resource, token, holder, changed_at)
         VALUES (wanted, granted, grantee, clock_timestamp())
         ON CONFLICT (resource) DO UPDATE
            SET token = excluded.token, holder = excluded.holder, changed_at = excluded.changed_at
          WHERE f.token < excluded.token OR (f.token = excluded.token AND f.holder = excluded.holder);
         IF NOT FOUND THEN
           RETURN;
         END IF;
         INSERT INTO leases_leaserecord
                (resource, token, holder, ttl_ms, host, pid, process_started, thread, acquired_at, "end")
         VALUES (wanted, granted, grantee, ttl, on_host, by_pid, by_process, by_thread, clock_timestamp(), '')
         ON CONFLICT (resource, token) DO NOTHING;
         RETURN QUERY
         SELECT r.token, r.holder::text, r.host::text, r.pid, r.process_started::text
           FROM (SELECT) AS accepted
           LEFT JOIN leases_leaserecord r ON r.resource = wanted AND r.ended_at IS NULL AND r.token < granted;
       END $$""",
    "DROP FUNCTION leases_register(text, bigint, text, bigint, text, bigint, text, text, text)",
)

PRESENT = (
    """CREATE FUNCTION leases_present(wanted text, proved bigint, time_limit text) RETURNS boolean
       LANGUAGE plpgsql AS $$
       DECLARE
         before text;
         fence oid;
         this_xact text;
         presented jsonb := nullif(current_setting('leases.presented', true), '')::jsonb;
       BEGIN
         before := set_config('lock_timeout', time_limit, true);
         before := set_config('idle_in_transaction_session_timeout', time_limit, true);
         before := set_config('tcp_user_timeout', time_limit, true);
         IF current_setting('synchronous_commit') <> 'remote_apply' THEN
           before := set_config('synchronous_commit', 'on', true);
         END IF;
         SELECT f.tableoid INTO fence FROM leases_fence f
          WHERE f.resource = wanted AND f.token = proved FOR SHARE OF f;
         IF NOT FOUND THEN
           RETURN false;
         END IF;
         IF pg_my_temp_schema() <> 0 THEN
           IF EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = fence AND c.relpersistence = 't') THEN
             RETURN false;
           END IF;
         END IF;
         this_xact := pg_current_xact_id()::text;
         IF presented->>'xact' IS DISTINCT FROM this_xact OR presented->>'fence' <> fence::text THEN
           presented := '{}';
         END IF;
         presented := presented || jsonb_build_object(
           'xact', this_xact,
           'fence', fence::text,
           'tokens', coalesce(presented->'tokens', '{}') || jsonb_build_object(wanted, proved::text));
         before := set_config('leases.presented', presented::text, true);
         RETURN true;
       END $$""",
    "DROP FUNCTION leases_present(text, bigint, text)",
)

# ON CONFLICT waits for a transaction that has inserted the same key: until it commits (NULL comes back), rolls back
# (this one is the first), or `lock_timeout` passes. That timeout bounds this wait only; what the caller had set is
# back before the body runs. The idle limits stay: they are what frees the key when the process freezes in the body.
INSERT_RECEIPT = (
    """CREATE FUNCTION leases_insert_receipt(
         wanted text, by_function text, by_message text, time_limit text, idle_limit text, kept interval)
       RETURNS bigint LANGUAGE plpgsql AS $$
       DECLARE
         receipt bigint;
         receipts oid;
         former_limit text := current_setting('lock_timeout');
       BEGIN
         PERFORM set_config('lock_timeout', time_limit, true),
                 set_config('idle_in_transaction_session_timeout', idle_limit, true);
         IF current_setting('synchronous_commit') <> 'remote_apply' THEN
           PERFORM set_config('synchronous_commit', 'on', true);
         END IF;
         INSERT INTO leases_receipt AS r
                (key, actor, state, reason, attempts, message_id, ran_at, asked_again, expires_at)
         VALUES (wanted, by_function, 'done', '', 1, by_message, clock_timestamp(), 0, clock_timestamp() + kept)
         ON CONFLICT (key) DO NOTHING
         RETURNING r.id, r.tableoid INTO receipt, receipts;
         PERFORM set_config('lock_timeout', former_limit, true);
         IF EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = receipts AND c.relpersistence = 't') THEN
           RETURN 0;
         END IF;
         RETURN receipt;
       END $$""",
    "DROP FUNCTION leases_insert_receipt(text, text, text, text, text, interval)",
)

# A release is not worth waiting for the disk: lost in a crash of the server, it makes a false alarm, nothing worse.
RELEASE = (
    """CREATE FUNCTION leases_release(released text, under bigint) RETURNS void
       LANGUAGE plpgsql AS $$
       DECLARE
         before text := set_config('synchronous_commit', 'off', true);
       BEGIN
         UPDATE leases_leaserecord SET ended_at = clock_timestamp(), "end" = 'released'
          WHERE resource = released AND token = under AND ended_at IS NULL;
       END $$""",
    "DROP FUNCTION leases_release(text, bigint)",
)

#: The functions, by the table without which they are not made.
BY_TABLE = {"leases_fence": (REGISTER, PRESENT, RELEASE), "leases_receipt": (INSERT_RECEIPT,)}

_MISSING = "SELECT to_regclass(%s) IS NOT NULL AND to_regprocedure(%s) IS NULL"


def signature(function: tuple[str, str]) -> str:
    """Return the function's name with the types of its arguments."""
    return function[1].removeprefix("DROP FUNCTION ")


def make_missing(using: str, **kwargs: object) -> None:
    """Make what no migration has made: in a test database whose tables are made without, or after a partial restore."""
    if connections[using].vendor != "postgresql":
        return
    with connections[using].cursor() as cursor:
        for table, made in BY_TABLE.items():
            for function in made:
                cursor.execute(_MISSING, [table, signature(function)])
                if cursor.fetchone()[0]:
                    cursor.execute(function[0])
