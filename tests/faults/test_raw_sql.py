"""Writes that go round the whole of Django: refused by the database, with and without somebody's lease."""

from collections.abc import Iterator

import pytest
from django.db import DatabaseError, connection, transaction

from billing.invoicing import invoice
from billing.models import Customer
from billing.periods import Period
from leases import fence, hold
from leases.errors import NotHeld, StaleToken
from tests.faults.billed import PERIOD, add_customer, billed_once, found
from tests.faults.conftest import Server

WRITES = {
    "update of an invoice": "UPDATE billing_invoice SET voided_at = voided_at WHERE customer_id = %s",
    "update of the saved answers": "UPDATE billing_taxanswer SET rates = '{}' WHERE customer_id = %s",
    "delete": "DELETE FROM billing_taxanswer WHERE customer_id = %s",
    "insert": "INSERT INTO billing_taxanswer (customer_id, document, content_hash, rates, token)"
    " VALUES (%s, 'x', 'x', '{}', 0)",
}


@pytest.fixture
def customer(transactional_db: None, simulators: dict[str, Server], settings: object) -> Iterator[Customer]:
    settings.BILLING_TAX_URL = f"http://127.0.0.1:{simulators['taxservice'].port}"  # type: ignore[attr-defined]
    customer = add_customer(1)
    invoice(customer.pk, Period.parse(PERIOD))
    yield customer
    assert found(customer.pk) == billed_once()


@pytest.mark.parametrize("write", WRITES)
def test_raw_write_without_a_lease_is_refused(customer: Customer, write: str) -> None:
    with connection.cursor() as cursor, pytest.raises(DatabaseError) as refused:
        cursor.execute(WRITES[write], [customer.pk])
    assert fence.sqlstate(refused.value) == fence.NOT_PRESENTED


@pytest.mark.parametrize("write", WRITES)
def test_raw_write_under_another_customers_lease_is_refused(customer: Customer, write: str) -> None:
    with (
        hold("customer:999999") as lease,
        pytest.raises(NotHeld),
        lease.transaction(),
        connection.cursor() as cursor,
    ):
        cursor.execute(WRITES[write], [customer.pk])


@pytest.mark.parametrize("write", WRITES)
def test_raw_write_under_a_stale_token_is_refused(customer: Customer, write: str) -> None:
    resource = f"customer:{customer.pk}"
    with hold(resource) as lease, connection.cursor() as cursor:
        cursor.execute(  # somebody took over
            "UPDATE leases_fence SET token = token + 1, holder = 'x' WHERE resource = %s", [resource]
        )
        with pytest.raises(DatabaseError) as refused, transaction.atomic():
            with pytest.raises(StaleToken):
                fence.present(resource, lease.token, ttl_ms=6000, using="default")
            cursor.execute(WRITES[write], [customer.pk])
    assert fence.sqlstate(refused.value) == fence.NOT_PRESENTED
