"""What Django's schema language cannot say about invoices: overlaps, composite keys, and that they do not change."""

from django.contrib.postgres.operations import BtreeGistExtension
from django.db import migrations

NO_OVERLAP = """
ALTER TABLE billing_invoice ADD CONSTRAINT billing_invoice_no_overlap
    EXCLUDE USING gist (customer_id WITH =, kind WITH =, period WITH &&) WHERE (status <> 'void')
"""

# A child cannot hang on another customer's invoice.
COMPOSITE_KEYS = """
ALTER TABLE billing_invoice ADD CONSTRAINT billing_invoice_id_customer UNIQUE (id, customer_id);
ALTER TABLE billing_invoiceline ADD CONSTRAINT billing_line_invoice
    FOREIGN KEY (invoice_id, customer_id) REFERENCES billing_invoice (id, customer_id);
ALTER TABLE billing_creditnote ADD CONSTRAINT billing_credit_invoice
    FOREIGN KEY (invoice_id, customer_id) REFERENCES billing_invoice (id, customer_id);
"""

# The same for usage, once per statement: a foreign key asks once per row, which is most of the time that the claim of a
# hundred thousand rows takes. It need not guard the other side: an invoice is never deleted, nor changes its customer.
USAGE_KEY = """
CREATE FUNCTION billing_usage_of_customer() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM (SELECT DISTINCT invoice_id, customer_id FROM new_rows WHERE invoice_id IS NOT NULL) AS claimed
                WHERE NOT EXISTS (SELECT FROM public.billing_invoice i
                                   WHERE i.id = claimed.invoice_id AND i.customer_id = claimed.customer_id)) THEN
        RAISE EXCEPTION 'usage is claimed for an invoice that is not there or is another customer''s'
            USING ERRCODE = 'foreign_key_violation', CONSTRAINT = 'billing_usage_invoice';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER billing_usage_inserted AFTER INSERT ON billing_usageevent REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION billing_usage_of_customer();
CREATE TRIGGER billing_usage_updated AFTER UPDATE ON billing_usageevent REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION billing_usage_of_customer();
"""

IMMUTABLE = """
CREATE FUNCTION billing_refuse_change() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '% is issued and does not change; void the invoice and issue it again', TG_TABLE_NAME
        USING ERRCODE = 'BI001';
END $$;

-- An invoice gets its number inside the issuing transaction, and may become void; nothing else.
CREATE FUNCTION billing_invoice_change() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    may_change text[] := CASE
        WHEN OLD.number IS NULL THEN ARRAY['number', 'issued_at', 'token']
        WHEN OLD.status = 'issued' AND NEW.status = 'void' THEN ARRAY['status', 'voided_at', 'void_reason', 'token']
        ELSE ARRAY[]::text[] END;
BEGIN
    IF to_jsonb(NEW) - may_change IS DISTINCT FROM to_jsonb(OLD) - may_change THEN
        RAISE EXCEPTION 'invoice % is issued and does not change; void it and issue it again', OLD.id
            USING ERRCODE = 'BI001';
    END IF;
    RETURN NEW;
END $$;

-- Asked at commit: no invoice without a number, and none whose lines do not add up to it.
CREATE FUNCTION billing_invoice_whole() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found record;
BEGIN
    SELECT i.number,
           i.net_minor = (SELECT coalesce(sum(l.net_minor), 0) FROM public.billing_invoiceline l WHERE l.invoice_id = i.id)
               AS adds_up
      INTO found FROM public.billing_invoice i WHERE i.id = NEW.id;
    IF found.number IS NULL OR found.adds_up IS NOT TRUE THEN
        RAISE EXCEPTION 'invoice % has no number or its lines do not add up to it', NEW.id USING ERRCODE = 'BI002';
    END IF;
    RETURN NULL;
END $$;

-- The number comes last, so whoever adds a line to a numbered invoice comes too late.
CREATE FUNCTION billing_line_in_time() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM new_rows JOIN public.billing_invoice i ON i.id = new_rows.invoice_id
                WHERE i.number IS NOT NULL) THEN
        RAISE EXCEPTION 'the invoice is issued and takes no more lines' USING ERRCODE = 'BI001';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER billing_invoice_change BEFORE UPDATE ON billing_invoice
    FOR EACH ROW EXECUTE FUNCTION billing_invoice_change();
CREATE TRIGGER billing_invoice_delete BEFORE DELETE ON billing_invoice
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE CONSTRAINT TRIGGER billing_invoice_whole AFTER INSERT ON billing_invoice DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION billing_invoice_whole();
CREATE TRIGGER billing_line_in_time AFTER INSERT ON billing_invoiceline REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION billing_line_in_time();
CREATE TRIGGER billing_line_change BEFORE UPDATE OR DELETE ON billing_invoiceline
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_credit_change BEFORE UPDATE OR DELETE ON billing_creditnote
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
"""

OPERATIONS = [
    BtreeGistExtension(),
    migrations.RunSQL(
        NO_OVERLAP, "ALTER TABLE billing_invoice DROP CONSTRAINT billing_invoice_no_overlap"
    ),
    migrations.RunSQL(
        COMPOSITE_KEYS,
        """
        ALTER TABLE billing_creditnote DROP CONSTRAINT billing_credit_invoice;
        ALTER TABLE billing_invoiceline DROP CONSTRAINT billing_line_invoice;
        ALTER TABLE billing_invoice DROP CONSTRAINT billing_invoice_id_customer
        """,
    ),
    migrations.RunSQL(
        USAGE_KEY,
        """
        DROP TRIGGER billing_usage_updated ON billing_usageevent;
        DROP TRIGGER billing_usage_inserted ON billing_usageevent;
        DROP FUNCTION billing_usage_of_customer
        """,
    ),
    migrations.RunSQL(
        IMMUTABLE,
        """
        DROP TRIGGER billing_credit_change ON billing_creditnote;
        DROP TRIGGER billing_line_change ON billing_invoiceline;
        DROP TRIGGER billing_line_in_time ON billing_invoiceline;
        DROP TRIGGER billing_invoice_whole ON billing_invoice;
        DROP TRIGGER billing_invoice_delete ON billing_invoice;
        DROP TRIGGER billing_invoice_change ON billing_invoice;
        DROP FUNCTION billing_line_in_time, billing_invoice_whole, billing_invoice_change, billing_refuse_change
        """,
    ),
]
