"""Which indexes the drainer's statements read, in tables where the wrong one would look cheap."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from outbox.claims import id_array
from outbox.statements import statement

from .test_drain import fill

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("name", ["mark_and_intend", "give_back"])
def test_statements_about_known_messages_read_no_index_but_the_primary_key(name: str) -> None:
    # With a few held rows expected, the small index on them looks cheap; an old snapshot fills it with dead entries.
    fill(20_000)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE outbox_message SET state = 'sent', sent_at = now()")
        cursor.execute("ANALYZE outbox_message")
        values: dict[str, Any] = {
            "ids": id_array(range(1, 51)),
            "claim": 1,
            "accepted": id_array(range(51, 101)),
            "accepted_claim": 1,
            "delay": timedelta(0),
            "provider_ids": "{}",
            "refused": "{}",
        }
        cursor.execute("EXPLAIN " + statement(name), values)
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert set(re.findall(r"using (\w+)|Scan on (outbox_message_\w+)", plan)) == {("outbox_message_pkey", "")}, plan


def test_sweep_reads_nothing_of_what_waits_without_a_limit() -> None:
    fill(20_000)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE outbox_message SET deadline_at = now() WHERE id % 5000 = 0")
        cursor.execute("ANALYZE outbox_message")
        cursor.execute("EXPLAIN " + statement("expire"))
        plan = "\n".join(line for (line,) in cursor.fetchall())
    indexes = set(re.findall(r"using (\w+)|Scan on (outbox_message\w*)", plan))
    assert indexes == {("outbox_message_limited", ""), ("outbox_message_pkey", "")}, plan
