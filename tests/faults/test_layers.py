"""One layer at a time, the others switched off in the test's own database and servers.

The lease is off when every caller has a lease server of its own; the fence is off when every caller has a fence table
of its own and no trigger asks which; a constraint is off when it is dropped. The lease alone is in
test_lease_alone.py; the outbox, which needs none of the others, in tests/outbox; and what happens with no layer
at all in test_naive.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection

from billing.models import Customer
from tests.faults.billed import PERIOD, add_customer, billed_once, column, found, one
from tests.faults.conftest import Programs
from tests.servers.redis_server import PrivateRedis

CALLERS = 6


@pytest.fixture
def customer(programs: Programs) -> Customer:
    return add_customer(1)


def own_lease_server(redis_server: PrivateRedis, number: int) -> dict[str, str]:
    """Give caller `number` a database of the Redis server that no other caller sees."""
    return {"LEASES_REDIS_URL": f"{redis_server.url.rpartition('/')[0]}/{number}", "LEASES_TTL_SECONDS": "60"}


@contextmanager
def own_fences(callers: int) -> Iterator[list[dict[str, str]]]:
    """Give each caller a fence table of its own, found first on its search path."""
    triggers = "SELECT format('ALTER TABLE %%s {} TRIGGER %%I', tgrelid::regclass, tgname) FROM pg_trigger {}"
    fencing = "WHERE tgname LIKE 'pgtrigger_fence_%%'"
    with connection.cursor() as cursor:
        for disable in column(triggers.format("DISABLE", fencing)):
            cursor.execute(disable)
        for number in range(callers):
            cursor.execute(f"CREATE SCHEMA fence_{number}")
            cursor.execute(f"CREATE TABLE fence_{number}.leases_fence (LIKE public.leases_fence INCLUDING ALL)")
    try:
        yield [{"PGOPTIONS": f"-c search_path=fence_{number},public"} for number in range(callers)]
    finally:
        with connection.cursor() as cursor:
            for number in range(callers):
                cursor.execute(f"DROP SCHEMA fence_{number} CASCADE")
            for enable in column(triggers.format("ENABLE", fencing)):
                cursor.execute(enable)


@contextmanager
def without_constraints_on_slots() -> Iterator[None]:
    """Drop what keeps a slot from being filled twice, and put it back."""
    index = one("SELECT pg_get_indexdef('billing_invoice_one_live_per_slot'::regclass)")
    # As they were: another test asks for them as constraints.
    constraints = {
        name: one(f"SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = '{name}'")
        for name in ("billing_invoice_one_per_version", "billing_invoice_no_overlap")
    }
    with connection.cursor() as cursor:
        cursor.execute("DROP INDEX billing_invoice_one_live_per_slot")
        for name in constraints:
            cursor.execute(f"ALTER TABLE billing_invoice DROP CONSTRAINT {name}")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE billing_invoice CASCADE")
            cursor.execute(index)
            for name, definition in constraints.items():
                cursor.execute(f"ALTER TABLE billing_invoice ADD CONSTRAINT {name} {definition}")


@pytest.mark.parametrize("together_from", ["lease.registered", "invoice.rated"])
def test_six_callers_meet_the_constraint_and_all_get_the_one_invoice(
    programs: Programs, redis_server: PrivateRedis, customer: Customer, together_from: str
) -> None:
    with own_fences(CALLERS) as fences:
        callers = [
            programs.start(
                "invoice",
                *(str(customer.pk), PERIOD, "0"),
                fault=f"SIGSTOP {together_from}",
                **own_lease_server(redis_server, number),
                **fences[number],
            )
            for number in range(CALLERS)
        ]
        for caller in callers:
            caller.reached()
        assert found(customer.pk).live_invoices == 0
        for caller in callers:
            caller.wake()
        outcomes = sorted(caller.end().get("outcome", "failed") for caller in callers)
    assert outcomes == ["already_invoiced"] * (CALLERS - 1) + ["issued"]
    assert found(customer.pk) == billed_once()
    if together_from == "invoice.rated":  # it was the constraint, not the claim of the usage that comes after it
        assert not any("rate it again" in caller.process.output() for caller in callers)


def test_stale_holder_meets_the_fence_where_nothing_else_would_stop_it(
    programs: Programs, redis_server: PrivateRedis, customer: Customer
) -> None:
    with without_constraints_on_slots():
        first = programs.start(
            "invoice",
            *(str(customer.pk), PERIOD, "0"),
            fault="SIGSTOP tax.answered 3",
            **own_lease_server(redis_server, 1),
        )
        first.reached()
        second = programs.start("invoice", str(customer.pk), PERIOD, "0", **own_lease_server(redis_server, 2))
        assert second.end() == {"outcome": "issued"}
        first.wake()  # its lease is good for a minute yet, as far as it can know
        assert first.end() == {"error": "StaleToken"}
        assert found(customer.pk) == billed_once()
