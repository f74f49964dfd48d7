"""Checks of fenced models: one test per id."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pgtrigger
import pytest
from django.core.checks import CheckMessage, run_checks
from django.core.management import call_command
from django.db import DatabaseError, connection, models
from django.test.utils import isolate_apps

from leases import FencedManager, FencedModel, hold
from leases.checks import fenced_models
from tests.leases.test_checks import ids
from tests.ledger.models import Forgetful

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def scratch() -> Iterator[None]:
    """Let a test define fenced models that are forgotten afterwards, with their triggers."""
    registered = dict(pgtrigger.registry._registry)
    with isolate_apps("tests.ledger"):
        yield
    pgtrigger.registry._registry.clear()
    pgtrigger.registry._registry.update(registered)


def checked(*found: type[models.Model]) -> list[CheckMessage]:
    config: Any = SimpleNamespace(get_models=lambda: found)
    return fenced_models.fenced_models([config])


class Good(models.Model):
    """Fields that fenced models of these tests have."""

    account_id = models.BigIntegerField()

    class Meta:
        abstract = True


def test_fenced_models_of_the_project_are_in_order() -> None:
    assert ids(run_checks(tags=["leases"], databases=[])) == []


@pytest.mark.parametrize("template", ["account", "account:{}", "account:{account_id:>3}", 7])
def test_E001_template_that_names_no_resource(scratch: None, template: Any) -> None:
    class Row(FencedModel, Good):
        lease_resource = template

        class Meta(FencedModel.Meta):
            app_label = "ledger"

    assert ids(checked(Row)) == ["leases.E001"]


def test_E001_no_template_at_all(scratch: None) -> None:
    class Row(FencedModel, Good):
        class Meta(FencedModel.Meta):
            app_label = "ledger"

    assert ids(checked(Row)) == ["leases.E001"]


def test_E001_proxy_with_a_resource_of_its_own(scratch: None) -> None:
    class Row(FencedModel, Good):
        lease_resource = "account:{account_id}"

        class Meta(FencedModel.Meta):
            app_label = "ledger"

    class Proxy(Row):
        lease_resource = "book:{account_id}"

        class Meta(FencedModel.Meta):
            app_label = "ledger"
            proxy = True

    assert ids(checked(Row, Proxy)) == ["leases.E001"]


@pytest.mark.parametrize("name", ["accountid", "account"])
def test_E002_template_that_names_no_column(scratch: None, name: str) -> None:
    class Account(models.Model):
        class Meta:
            app_label = "ledger"

    class Row(FencedModel):
        lease_resource = f"account:{{{name}}}"
        account = models.ForeignKey(Account, models.CASCADE)

        class Meta(FencedModel.Meta):
            app_label = "ledger"

    [message] = checked(Row)
    assert message.id == "leases.E002"
    assert "account_id" in str(message.hint)


def test_E003_multi_table_child_of_a_fenced_model(scratch: None) -> None:
    class Row(FencedModel, Good):
        lease_resource = "account:{account_id}"

        class Meta(FencedModel.Meta):
            app_label = "ledger"

    class Child(Row):
        class Meta(FencedModel.Meta):
            app_label = "ledger"

    class Proxy(Row):
        class Meta(FencedModel.Meta):
            app_label = "ledger"
            proxy = True

    assert ids(checked(Row, Child, Proxy)) == ["leases.E003"]


@pytest.mark.parametrize(
    "field", [models.DateField(), models.DecimalField(max_digits=9, decimal_places=2), models.GenericIPAddressField()]
)
def test_E004_column_whose_text_differs_between_python_and_postgresql(scratch: None, field: Any) -> None:
    class Row(FencedModel):
        lease_resource = "account:{part}"
        part = field

        class Meta(FencedModel.Meta):
            app_label = "ledger"

    assert ids(checked(Row)) == ["leases.E004"]


def test_E005_column_that_may_be_null(scratch: None) -> None:
    class Row(FencedModel):
        lease_resource = "account:{part}"
        part = models.BigIntegerField(null=True)

        class Meta(FencedModel.Meta):
            app_label = "ledger"

    assert ids(checked(Row)) == ["leases.E005"]


def test_E008_model_whose_table_no_migration_makes_has_no_trigger(scratch: None) -> None:
    class Row(FencedModel, Good):
        lease_resource = "account:{account_id}"

        class Meta(FencedModel.Meta):
            app_label = "ledger"
            managed = False

    assert ids(checked(Row)) == ["leases.E008"]


def test_E009_automatic_key_that_a_new_row_does_not_have_yet(scratch: None) -> None:
    class Row(FencedModel):
        lease_resource = "row:{id}"
        id = models.BigAutoField(primary_key=True)

        class Meta(FencedModel.Meta):
            app_label = "ledger"

    assert ids(checked(Row)) == ["leases.E009"]


@pytest.mark.parametrize("template", ["a$$b:{account_id}", "$$$'{account_id}$$", "$1:{account_id}"])
def test_table_whose_resource_has_dollar_signs_is_fenced_all_the_same(scratch: None, template: str) -> None:
    class Row(FencedModel, Good):
        lease_resource = template

        class Meta(FencedModel.Meta):
            app_label = "ledger"

    with connection.schema_editor() as editor:
        editor.create_model(Row)
    try:
        for _, trigger in pgtrigger.registered(*(f"ledger.Row:fence_{event}" for event in ("insert", "delete"))):
            trigger.install(cast(Any, Row))
        with hold(template.format(account_id=1)):
            Row.objects.create(account_id=1)
        with pytest.raises(DatabaseError, match="not presented"), connection.cursor() as cursor:
            cursor.execute("DELETE FROM ledger_row")
    finally:
        with connection.schema_editor() as editor:
            editor.delete_model(Row)


def test_W006_base_manager_overridden(scratch: None) -> None:
    class Row(FencedModel, Good):
        lease_resource = "account:{account_id}"

        class Meta(FencedModel.Meta):
            app_label = "ledger"
            base_manager_name = "plain"

        plain: ClassVar[models.Manager[Any]] = models.Manager()

    assert "leases.W006" in ids(checked(Row))


def test_meta_that_forgets_to_inherit_has_the_fenced_base_manager_all_the_same() -> None:
    assert checked(Forgetful) == []


def test_W007_manager_that_presents_nothing(scratch: None) -> None:
    class Row(FencedModel, Good):
        lease_resource = "account:{account_id}"
        objects: ClassVar[FencedManager] = FencedManager()
        plain: ClassVar[models.Manager[Any]] = models.Manager()

        class Meta(FencedModel.Meta):
            app_label = "ledger"

    assert ids(checked(Row)) == ["leases.W007"]


def test_changed_template_makes_a_migration(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("makemigrations", "ledger", "--check", "--dry-run")
    [(_, trigger)] = pgtrigger.registered("ledger.Entry:fence_insert")
    monkeypatch.setattr(trigger, "resource_template", "book:{account_id}")
    with pytest.raises(SystemExit):
        call_command("makemigrations", "ledger", "--check", "--dry-run")
    assert "fence_insert" in capsys.readouterr().out
