"""What Django's migrations cannot say: the claim numbers, the storage of a table of queue-like rows, and finality."""

CLAIM_NUMBERS = (
    "CREATE SEQUENCE outbox_claim AS bigint OWNED BY outbox_message.claim",
    "DROP SEQUENCE outbox_claim",
)

# Every message is rewritten four times on its way. Room on its own page keeps the new versions near, and vacuum must
# come by the number of dead rows, not by a share of a table that keeps its history.
STORAGE = (
    """ALTER TABLE outbox_message SET (
           fillfactor = 70,
           autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 20000,
           autovacuum_vacuum_cost_delay = 0,
           autovacuum_analyze_scale_factor = 0.0, autovacuum_analyze_threshold = 50000)""",
    """ALTER TABLE outbox_message RESET (
           fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold, autovacuum_vacuum_cost_delay,
           autovacuum_analyze_scale_factor, autovacuum_analyze_threshold)""",
)

# The admin's filter by age: rows lie in the order of their making, so a few kilobytes tell where. Not in the model,
# where it would demand django.contrib.postgres among the apps.
AGES = (
    """CREATE INDEX outbox_message_created ON outbox_message
        USING brin (created_at) WITH (pages_per_range = 32, autosummarize = on)""",
    "DROP INDEX outbox_message_created",
)

# Whoever writes, with whatever program: a message that was sent stays sent, and one that was taken back stays so.
FINALITY = (
    """CREATE FUNCTION outbox_message_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
       BEGIN
         RAISE EXCEPTION 'outbox message % is %, which is final', OLD.id, OLD.state
           USING ERRCODE = 'check_violation', CONSTRAINT = 'outbox_message_is_final', TABLE = 'outbox_message';
       END $$;
       CREATE TRIGGER outbox_message_is_final BEFORE UPDATE ON outbox_message
         FOR EACH ROW WHEN (OLD.state IN ('sent', 'cancelled') AND NEW.state <> OLD.state)
         EXECUTE FUNCTION outbox_message_is_final()""",
    """DROP TRIGGER outbox_message_is_final ON outbox_message;
       DROP FUNCTION outbox_message_is_final()""",
)
