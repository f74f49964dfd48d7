"""What users' own tests do with leases.testing: here as theirs, in a TestCase and in a TransactionTestCase."""

from typing import Any, ClassVar
from unittest import mock

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import F
from django.test import TestCase, TransactionTestCase

import leases
from leases import current_lease, hold, leased
from leases.errors import InsideTransaction, LeaseLost, NotHeld, StaleInstance, StaleToken
from leases.models import Fence, Incident
from leases.testing import holding
from tests.leases.test_fenced import RAW, sql
from tests.ledger.models import Account, Entry

nobody = mock.patch("leases.keys.get_redis_connection", side_effect=AssertionError("Redis was asked"))
neither = mock.patch("leases.redis_store.get_redis_connection", side_effect=AssertionError("Redis was asked"))


@nobody
@neither
class InsideATestCase(TestCase):
    account: ClassVar[Account]
    resource: ClassVar[str]
    entry: ClassVar[Entry]

    @classmethod
    def setUpTestData(cls) -> None:
        cls.account = Account.objects.create(name="Ada")
        cls.resource = f"account:{cls.account.pk}"
        with holding(cls.resource):
            cls.entry = Entry.objects.create(account=cls.account)

    def test_fenced_rows_are_written_under_it_without_redis(self, *_: Any) -> None:
        with holding(self.resource) as lease:
            entry = Entry.objects.create(account=self.account)
            lease.check()
        assert entry.token == lease.token == Fence.objects.get().token

    def test_write_outside_it_is_refused_as_in_production(self, *_: Any) -> None:
        with pytest.raises(NotHeld):
            Entry.objects.create(account=self.account)
        with pytest.raises(DatabaseError, match="not presented"), transaction.atomic():
            RAW["UPDATE"](self.account, self.entry)

    def test_what_was_presented_is_taken_back_at_the_end_of_the_block(self, *_: Any) -> None:
        with holding(self.resource):
            Entry.objects.create(account=self.account)
        with pytest.raises(DatabaseError, match="not presented"), transaction.atomic():
            RAW["UPDATE"](self.account, self.entry)

    def test_other_resource_is_refused_by_the_trigger(self, *_: Any) -> None:
        other = Account.objects.create(name="Bob")
        with holding(self.resource) as lease, pytest.raises(NotHeld), lease.transaction():
            RAW["INSERT"](other, self.entry)

    def test_code_that_holds_by_itself_finds_the_lease(self, *_: Any) -> None:
        @leased("account:{account_id}")
        def job(account_id: int) -> int:
            with hold(f"account:{account_id}") as lease:
                Entry.objects.create(account_id=account_id)
            return lease.token

        with pytest.raises(InsideTransaction):
            job(self.account.pk)
        with holding(self.resource) as lease:
            assert job(self.account.pk) == lease.token

    def test_instance_read_before_it_is_stale(self, *_: Any) -> None:
        with holding(self.resource):
            with pytest.raises(StaleInstance):
                self.entry.save()
            self.entry.refresh_from_db()
            self.entry.save()

    def test_loss_and_staleness_can_be_played(self, *_: Any) -> None:
        with holding(self.resource) as lease:
            Fence.objects.update(token=F("token") + 1)
            with pytest.raises(StaleToken), transaction.atomic():
                Entry.objects.create(account=self.account)
            with pytest.raises(LeaseLost):
                lease.check()
        assert not Incident.objects.exists()

    def test_no_time_limit_is_left_on_the_tests_transaction(self, *_: Any) -> None:
        with holding(self.resource):
            Entry.objects.create(account=self.account)
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('idle_in_transaction_session_timeout')")
            assert cursor.fetchone()[0] == "0"

    def test_token_goes_up_from_block_to_block(self, *_: Any) -> None:
        with holding(self.resource) as first:
            pass
        with holding(self.resource) as second:
            assert second.token > first.token
        assert current_lease() is None

    def test_body_that_broke_the_transaction_shows_its_own_error(self, *_: Any) -> None:
        with pytest.raises(DatabaseError, match="no_such_table"), transaction.atomic(), holding(self.resource):
            sql("SELECT * FROM no_such_table")

    def test_bypass_works_in_it(self, *_: Any) -> None:
        with leases.bypass(reason="a fixture"):
            Entry.objects.create(account=self.account)
        with pytest.raises(NotHeld):
            Entry.objects.create(account=self.account)


@nobody
@neither
class InATransactionTestCase(TransactionTestCase):
    def test_it_works_over_many_transactions_and_shows_raw_sql_that_forgot_to_present(self, *_: Any) -> None:
        account = Account.objects.create(name="Ada")
        with holding(f"account:{account.pk}"):
            entry = Entry.objects.create(account=account)
            Entry.objects.create(account=account)
            with pytest.raises(DatabaseError, match="not presented"):
                RAW["UPDATE"](account, entry)
        assert Entry.objects.count() == 2

    def test_flush_between_tests_forgets_the_fences(self, *_: Any) -> None:
        assert not Entry.objects.exists()
        assert not Fence.objects.exists()
