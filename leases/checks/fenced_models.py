"""Checks of fenced models; they need no server."""

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig, apps
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import models

from leases.fenced import FencedModel, FencedQuerySet
from leases.triggers import parse_template

# Python's text of a value of these is PostgreSQL's too; of a date, a number with decimals or an address it is not.
_SAME_TEXT = (models.IntegerField, models.CharField, models.TextField, models.UUIDField)


@register(Tags.models, "leases")
def fenced_models(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Check every fenced model of the project, or of the given apps."""
    chosen = apps.get_app_configs() if app_configs is None else app_configs
    return [
        message
        for config in chosen
        for model in config.get_models()
        if issubclass(model, FencedModel) and not model._meta.swapped
        for message in _check(model)
    ]


def _check(model: type[FencedModel]) -> Iterator[CheckMessage]:
    if model._meta.proxy:
        yield from _proxy(model)
    else:
        concrete_parents = [parent for parent in model._meta.parents if not parent._meta.proxy]
        if concrete_parents:
            yield _multi_table(model, concrete_parents[0])
        else:
            yield from _check_template(model)
        if not model._meta.managed:
            yield _unmanaged(model)
    yield from _check_managers(model)


def _proxy(model: type[FencedModel]) -> Iterator[CheckMessage]:
    table_of: Any = model._meta.concrete_model
    template = getattr(table_of, "lease_resource", None)
    if model.__dict__.get("lease_resource", template) != template:
        yield Error(
            f"{model._meta.label} is a proxy with a lease_resource of its own, and its rows belong to {template!r}, "
            f"that of {table_of._meta.label}: they can never be written through it.",
            hint=f"Remove lease_resource from {model.__name__}.",
            obj=model,
            id="leases.E001",
        )


def _unmanaged(model: type[FencedModel]) -> CheckMessage:
    return Error(
        f"{model._meta.label} is fenced and not managed: no migration makes its triggers, and the database lets writes "
        "without a lease through.",
        hint=f"Remove managed = False from {model.__name__}.Meta, or make it a plain model.",
        obj=model,
        id="leases.E008",
    )


def _multi_table(model: type[models.Model], parent: type[models.Model]) -> CheckMessage:
    return Error(
        f"{model._meta.label} is fenced and its rows lie in two tables, its own and that of {parent._meta.label}.",
        hint=f"Make {parent._meta.label} abstract, or give {model.__name__} a ForeignKey or OneToOneField to it "
        "instead of inheriting: a trigger sees only the columns of one table.",
        obj=model,
        id="leases.E003",
    )


def _check_template(model: type[FencedModel]) -> Iterator[CheckMessage]:
    template = getattr(model, "lease_resource", None)
    try:
        if not isinstance(template, str):
            raise ValueError(f"it is {template!r}, not text")
        fields = [value for kind, value in parse_template(template) if kind == "field"]
    except ValueError as error:
        yield Error(
            f"{model._meta.label}.lease_resource names no resource: {error}.",
            hint='Set lease_resource = "customer:{customer_id}", with a column of the model in braces; then '
            "type: manage.py makemigrations, and manage.py migrate, which put the triggers there.",
            obj=model,
            id="leases.E001",
        )
        return
    for name in fields:
        yield from _check_column(model, name)


def _check_column(model: type[FencedModel], name: str) -> Iterator[CheckMessage]:
    known = {field.attname: field for field in model._meta.concrete_fields}
    field = known.get(name)
    if field is None:
        yield Error(
            f"{model._meta.label}.lease_resource names {{{name}}}, which is no column of it.",
            hint=f"Write one of {', '.join(sorted(known))} in the braces; of a ForeignKey the name ends in _id.",
            obj=model,
            id="leases.E002",
        )
        return
    if isinstance(field, models.AutoField):
        yield Error(
            f"{model._meta.label}.lease_resource names {{{name}}}, which the database counts up: a row has none until "
            "it is there, so that it belongs to nothing and can never be created.",
            hint="Name a column whose value is known before: a ForeignKey, a UUIDField(default=uuid.uuid4), or a key "
            "that you give yourself.",
            obj=model,
            id="leases.E009",
        )
    target = field
    while isinstance(target, models.ForeignKey):
        target = target.target_field
    if not isinstance(target, _SAME_TEXT):
        yield Error(
            f"{model._meta.label}.lease_resource names {{{name}}}, a {type(target).__name__}, whose text is not the "
            "same in Python and in PostgreSQL.",
            hint="Name columns of integers, text or UUIDs; copy what names the resource into a CharField if need be.",
            obj=model,
            id="leases.E004",
        )
    if field.null:
        yield Error(
            f"{model._meta.label}.lease_resource names {{{name}}}, which may be NULL: such a row belongs to nothing "
            "and can never be written.",
            hint=f"Set null=False on {model.__name__}.{field.name}.",
            obj=model,
            id="leases.E005",
        )


def _check_managers(model: type[FencedModel]) -> Iterator[CheckMessage]:
    if not issubclass(_queryset_class(model._base_manager), FencedQuerySet):
        yield Warning(
            f"{model._meta.label} writes through a base manager that presents no lease.",
            hint=f"Let {model.__name__}.Meta inherit from FencedModel.Meta, or set "
            'base_manager_name = "objects" in it.',
            obj=model,
            id="leases.W006",
        )
    for manager in model._meta.managers:
        if not issubclass(_queryset_class(manager), FencedQuerySet):
            yield Warning(
                f"{model._meta.label}.{manager.name} presents no lease, so the database refuses what is written "
                "through it outside lease.transaction().",
                hint=f"Make {manager.name} a FencedManager; put its methods into a subclass of FencedQuerySet and use "
                "FencedManager.from_queryset().",
                obj=model,
                id="leases.W007",
            )


def _queryset_class(manager: models.Manager[Any]) -> type[models.QuerySet[Any]]:
    return type(manager.get_queryset())
