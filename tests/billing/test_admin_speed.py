"""The admin's lists over 60,000 rows per table: whatever a page shows, it reads a bounded number of rows."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoDbBlocker

ROWS = 60_000
#: A count that stops at 10,000, some pages of rows, and a look per date.
MOST_READ = 25_000

TABLES = [
    "billing_creditnote", "billing_customer", "billing_invoice", "billing_invoiceline", "billing_item", "billing_run",
    "billing_taxanswer", "billing_usageevent",
]  # fmt: skip

# Without triggers, whose promises are tested elsewhere.
FILL = f"""
SET LOCAL session_replication_role = replica;
INSERT INTO billing_customer (code, name, email, currency, timezone, country, status)
SELECT 'C' || to_char(n, 'FM000000'), 'Customer ' || n, 'c' || n || '@example.com', 'EUR', 'UTC', 'DE', 'active'
  FROM generate_series(1, {ROWS}) n;
INSERT INTO billing_run (period, cutoff_at, created_at)
SELECT daterange(d::date, (d + interval '1 month')::date), now(), d + interval '1 month'
  FROM generate_series(date '2026-01-01', date '2026-04-01', interval '1 month') d;
INSERT INTO billing_invoice (customer_id, kind, period, version, status, series, number, issued_at, starts_at, ends_at,
       cutoff_at, currency, exponent, net_minor, tax_minor, gross_minor, taxes, customer_snapshot, usage_count, token,
       void_reason, voided_at)
SELECT (SELECT min(id) FROM billing_customer) + n - 1, 'usage', '[2026-05-01,2026-06-01)', 1,
       CASE WHEN n % 15000 = 0 THEN 'void' ELSE 'issued' END, 'INV', n,
       timestamptz '2025-01-01' + n * interval '500 seconds', now(), now(), now(), 'EUR', 2, 100, 19, 119, '[]', '{{}}',
       1, 1, '', CASE WHEN n % 15000 = 0 THEN now() END
  FROM generate_series(1, {ROWS}) n;
INSERT INTO billing_invoiceline (invoice_id, customer_id, position, metric, subject, quantity, net_minor, tax_category,
       tax_rate, usage_count, token)
SELECT (SELECT min(id) FROM billing_invoice), (SELECT min(id) FROM billing_customer), n, 'hours', 'host ' || n, 1, 1,
       'standard', 0.19, 1, 1
  FROM generate_series(1, {ROWS}) n;
INSERT INTO billing_creditnote (invoice_id, customer_id, series, number, issued_at, net_minor, tax_minor, gross_minor,
       reason, token)
SELECT id, customer_id, 'CN', number, issued_at, 100, 19, 119, 'wrong', 1 FROM billing_invoice;
INSERT INTO billing_taxanswer (customer_id, document, content_hash, rates, token)
SELECT id, 'invoice:' || id || ':usage:2026-05:v1', 'hash', '{{"1": "0.19"}}', 1 FROM billing_customer;
INSERT INTO billing_item (run_id, customer_id, outcome, reason, attempts, rescues)
SELECT r.id, c.id, CASE WHEN c.id % 6000 = 0 THEN 'parked' ELSE 'issued' END, '', 1, 0
  FROM billing_run r, (SELECT id FROM billing_customer ORDER BY id LIMIT {ROWS // 4}) c ORDER BY r.id, c.id;
INSERT INTO billing_usageevent (source, key, customer_id, metric, subject, quantity, currency, tax_category,
       occurred_at, received_at, digest, invoice_id)
SELECT 'test', id, id, 'hours', '', 1, '', '', now(),
       timestamptz '2025-01-01' + row_number() OVER (ORDER BY id) * interval '1 year' / {ROWS + 1}, '',
       CASE WHEN id % 1000 > 0 THEN (SELECT min(id) FROM billing_invoice) END FROM billing_customer ORDER BY id;
ANALYZE {", ".join(TABLES)};
"""

DEFAULT_LISTS = [
    "creditnote/", "customer/", "invoice/", "invoiceline/", "item/", "taxanswer/", "usageevent/", "price/", "series/",
]  # fmt: skip
NARROWED = [
    "creditnote/?q=CN-000077",
    "creditnote/?issued_at__year=2025&issued_at__month=3",
    "customer/?q=C0000",
    "invoice/?status__exact=void",
    "invoice/?status__exact=issued&p=150",
    "invoice/?q=INV-000077",
    "invoice/?q=C000077",
    "invoice/?issued_at__year=2025",
    "invoice/?issued_at__year=2025&issued_at__month=3&issued_at__day=5",
    "invoiceline/?invoice__id__exact={invoice}",
    "item/?outcome=parked&run={run}",
    "item/?run={run}",
    "item/?outcome=skipped",
    "item/?outcome=waiting",
    "item/?q=C000077",
    "item/?run__created_at__year=2026",
    "item/?run__created_at__year=2026&run__created_at__month=2",
    "item/?run__created_at__year=2026&run__created_at__month=5",
    "item/?run__created_at__year=2026&run__created_at__month=2&run__created_at__day=1&outcome=parked",
    "taxanswer/?q=C000077",
    "usageevent/?q=C000077",
    "usageevent/?q=test:77",
    "usageevent/?invoice__id__exact={invoice}",
    "usageevent/?received_at__year=2025",
    "usageevent/?received_at__year=2025&received_at__month=3",
    "usageevent/?received_at__year=2025&received_at__month=3&received_at__day=5",
    "usageevent/?received_at__year=2025&received_at__month=3&received_at__day=5&invoiced=no",
    "usageevent/?invoiced=no&customer__id__exact={customer}",
    "usageevent/?invoiced=no",
    "usageevent/?invoiced=yes",
]


@pytest.fixture(scope="module")
def many_rows(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[dict[str, int]]:
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(f"BEGIN; {FILL} COMMIT")
        cursor.execute("VACUUM billing_item, billing_customer")
        cursor.execute("SELECT min(i.id), min(customer_id), (SELECT min(id) FROM billing_run) FROM billing_invoice i")
        yield dict(zip(["invoice", "customer", "run"], cursor.fetchone(), strict=True))
        cursor.execute(f"TRUNCATE {', '.join(TABLES)} CASCADE")


def rows_read(plan: dict[str, Any]) -> int:
    """Return how many rows the scans of an analyzed plan touched."""
    below = sum(rows_read(child) for child in plan.get("Plans", ()))
    if "Relation Name" not in plan:
        return below
    removed = [rows for name, rows in plan.items() if name.startswith("Rows Removed")]
    per_loop = plan["Actual Rows"] + sum(removed)
    return below + int(per_loop * plan["Actual Loops"])


def read_by(queries: CaptureQueriesContext) -> dict[str, int]:
    """Return how many rows each of the page's statements read."""
    found = {}
    with connection.cursor() as cursor:
        for query in list(queries.captured_queries):
            if query["sql"].startswith(("SELECT", "(SELECT", "WITH")):
                cursor.execute(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {query['sql']}")
                (plan,) = cursor.fetchone()
                found[query["sql"]] = rows_read((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])
    return found


def open_page(client: Client, path: str) -> CaptureQueriesContext:
    with CaptureQueriesContext(connection) as queries:
        response = client.get(f"/admin/billing/{path}")
        assert response.status_code == 200, response.get("Location")
        assert "errornote" not in response.content.decode()
    return queries


@pytest.mark.parametrize("path", [*DEFAULT_LISTS, *NARROWED])
def test_list_reads_a_bounded_number_of_rows(admin_client: Client, many_rows: dict[str, int], path: str) -> None:
    queries = open_page(admin_client, path.format(**many_rows))
    too_much = {sql: rows for sql, rows in read_by(queries).items() if rows > MOST_READ}
    assert not too_much


def test_invoice_of_60_000_lines_shows_the_first_and_links_to_all(
    admin_client: Client, many_rows: dict[str, int]
) -> None:
    queries = open_page(admin_client, f"invoice/{many_rows['invoice']}/change/")
    assert max(read_by(queries).values()) < 100
    page = admin_client.get(f"/admin/billing/invoice/{many_rows['invoice']}/change/").content.decode()
    assert "all 60,000 lines" in page
    assert "host 25" in page
    assert "host 26" not in page


def test_runs_count_their_items_in_one_statement(admin_client: Client, many_rows: dict[str, int]) -> None:
    queries = open_page(admin_client, "run/")
    counting = [query["sql"] for query in queries.captured_queries if 'FROM "billing_item"' in query["sql"]]
    assert len(counting) == 1
    page = admin_client.get("/admin/billing/run/").content.decode()
    assert page.count("15,000 of 15,000") >= 4


def test_length_of_a_long_list_is_said_to_be_more(admin_client: Client, many_rows: dict[str, int]) -> None:
    page = admin_client.get("/admin/billing/item/").content.decode()
    assert "10,000+ items" in page
