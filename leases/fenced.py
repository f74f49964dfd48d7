"""Models whose rows are written only under the lease on their resource.

The manager sees to it that every write presents the lease this thread holds, and refuses before any SQL when there is
none. The trigger refuses whatever does not come through here: raw SQL, other programs, COPY, cascades.
"""

import secrets
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar, Self, TypeVar, cast

from django.db import models, router, transaction
from django.db.models.query import ModelIterable
from django.db.models.signals import class_prepared

from leases.bypassing import is_bypassed
from leases.clock import boottime
from leases.errors import NotHeld, StaleInstance
from leases.holding import current_lease, held_leases
from leases.lease import Lease
from leases.presenting import presenting
from leases.triggers import fence_triggers, parse_template

#: Names the clock of this machine, as long as it runs: an instance out of a cache may have been read on another.
_HERE = secrets.token_hex(8)

M = TypeVar("M", bound="FencedModel")


class _Reading(threading.local):
    """When the query began whose rows this thread is making into instances."""

    began: float | None = None


_reading = _Reading()


class _TimedIterable(ModelIterable):  # type: ignore[type-arg]  # generic in the stubs only
    """Instances that know when their query began: of an `iterator()`, rows may come out long after they were read."""

    def __iter__(self) -> Iterator[Any]:
        began = boottime()
        rows = super().__iter__()
        while True:
            outer, _reading.began = _reading.began, began
            try:
                row = next(rows, None)
            finally:
                _reading.began = outer
            if row is None:
                return
            yield row


class FencedQuerySet(models.QuerySet[M]):
    """A queryset whose writes run in a transaction that presents the leases they are made under."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._iterable_class = _TimedIterable

    def bulk_create(
        self,
        objs: Iterable[M],
        batch_size: int | None = None,
        ignore_conflicts: bool = False,
        update_conflicts: bool = False,
        update_fields: Collection[str] | None = None,
        unique_fields: Collection[str] | None = None,
    ) -> list[M]:
        rows = list(objs)
        if update_fields:
            update_fields = {*update_fields, "token"}
        with _writing(rows, self._write_alias()):
            return super().bulk_create(
                rows, batch_size, ignore_conflicts, update_conflicts, update_fields, unique_fields
            )

    def bulk_update(self, objs: Iterable[M], fields: Iterable[str], batch_size: int | None = None) -> int:
        rows, names = list(objs), [*fields]
        if not names:
            return super().bulk_update(rows, names, batch_size=batch_size)  # which says that it needs some
        with _writing(rows, self._write_alias(), fields=names):
            return super().bulk_update(rows, [*names, "token"], batch_size=batch_size)

    def update(self, **kwargs: Any) -> int:
        with self._under_all_leases() as leases:
            if len(leases) == 1:
                kwargs.setdefault("token", leases[0].token)
            return super().update(**kwargs)

    update.alters_data = True  # type: ignore[attr-defined]  # as Django marks it for templates

    def delete(self) -> tuple[int, dict[str, int]]:
        with self._under_all_leases():
            return super().delete()

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]

    def _write_alias(self) -> str:
        writing = self._chain()  # type: ignore[attr-defined]  # the stubs leave out what Django's own querysets use
        writing._for_write = True
        return str(writing.db)

    @contextmanager
    def _under_all_leases(self) -> Iterator[list[Lease]]:
        """Present every lease the thread holds: which rows will be touched is not known beforehand."""
        using = self._write_alias()
        if is_bypassed(using):
            yield []
            return
        mine = held_leases(using)
        leases = [lease for lease in mine if lease.is_held]
        if not leases:
            for lost in mine:
                lost.check()
            raise NotHeld(self.model.lease_resource)
        with presenting(leases, using, savepoint=False):
            yield leases


class FencedManager(models.Manager.from_queryset(FencedQuerySet)):  # type: ignore[misc]  # a class made at run time
    """The manager of a fenced model; put your own methods into a subclass of FencedQuerySet."""


class FencedModel(models.Model):
    """An abstract model whose rows can be written only under the lease on the resource they belong to.

    Set `lease_resource` to the name of the resource by the model's own columns:

        class Invoice(FencedModel):
            lease_resource = "customer:{customer_id}"
            customer = models.ForeignKey(Customer, on_delete=models.PROTECT)

        with hold("customer:42"):
            Invoice.objects.create(customer_id=42)

    `token` keeps the token a row was last written under, for people; it is not what is checked. A row that was made in
    a bypass has 0.
    """

    lease_resource: ClassVar[str]

    token = models.BigIntegerField(editable=False, help_text="The fencing token this row was last written under.")

    objects: ClassVar[FencedManager] = FencedManager()

    class Meta:
        abstract = True
        base_manager_name = "objects"

    #: When this instance last agreed with its row, and on whose clock; None if it has no row yet.
    _read_at: tuple[str, float] | None = None
    #: The resource that its row belonged to then; None if a column that names it was not read.
    _read_under: str | None = None

    def save(self, **kwargs: Any) -> None:
        using = kwargs.get("using") or router.db_for_write(type(self), instance=self)
        fields = kwargs.get("update_fields")
        if fields is not None:
            kwargs["update_fields"] = {*fields, "token"}
        with _writing([self], using, fields=fields):
            super().save(**kwargs)

    def delete(self, using: str | None = None, keep_parents: bool = False) -> tuple[int, dict[str, int]]:
        alias = using or router.db_for_write(type(self), instance=self)
        with _writing([self], alias):
            return super().delete(using=alias, keep_parents=keep_parents)

    @classmethod
    def from_db(cls, db: str | None, field_names: Collection[str], values: Collection[Any], **kwargs: Any) -> Self:
        began = boottime() if _reading.began is None else _reading.began
        instance = super().from_db(db, field_names, values, **kwargs)
        instance._agree(began)
        return instance

    def refresh_from_db(self, *args: Any, **kwargs: Any) -> None:
        started = boottime()
        super().refresh_from_db(*args, **kwargs)
        # Some fields alone, as when a deferred one is looked at, do not make the others new.
        if (args[1] if len(args) > 1 else kwargs.get("fields")) is None:
            self._agree(started)

    def resource(self) -> str:
        """Return the name of the resource this row belongs to, as it stands in this instance."""
        return self.lease_resource.format(**{name: getattr(self, name) for name in _naming_fields(self.lease_resource)})

    def _agree(self, at: float) -> None:
        """Remember that this instance agreed with its row at that time, and where its row was."""
        is_known = all(name in self.__dict__ for name in _naming_fields(self.lease_resource))
        self._read_at = _HERE, at
        self._read_under = self.resource() if is_known else None

    def _check_read_under(self, lease: Lease, using: str) -> None:
        """Raise unless this instance was read after the lease was granted, and that on the resource its row was in."""
        if self._read_at is None:
            return
        name = f"{self._meta.label} {self.pk}"
        if self._state.db not in (None, using):
            raise StaleInstance(lease.resource, instance=name, read_from=self._state.db, using=using)
        leases = [lease]
        if self._read_under is None:
            leases = held_leases(using)
        elif self._read_under != lease.resource:
            leases.append(_held(self._read_under, using))
        for one in leases:
            if self._read_at[0] != _HERE or self._read_at[1] < one.granted_at:
                raise StaleInstance(one.resource, instance=name)


@contextmanager
def _writing(rows: "Sequence[FencedModel]", using: str, *, fields: Collection[str] | None = None) -> Iterator[None]:
    if is_bypassed(using):
        for row in rows:
            row.token = row.token or 0
        yield
        return
    leases: dict[str, Lease] = {}
    placed: list[tuple[FencedModel, str]] = []
    for row in rows:
        lease = _lease_of(row, using)
        row._check_read_under(lease, using)
        leases[lease.resource] = lease
        placed.append((row, lease.resource))
        row.token = lease.token
    if not leases:
        yield
        return
    # A row that moves from one resource to another needs both leases, and only the database knows where it was.
    others = [lease for lease in held_leases(using) if lease.resource not in leases and lease.is_held]
    with presenting([*leases.values(), *others], using, savepoint=False):
        yield
        _agree_as_written(placed, using, fields)


def _agree_as_written(placed: "Sequence[tuple[FencedModel, str]]", using: str, fields: Collection[str] | None) -> None:
    now = _HERE, boottime()
    moved = []
    for row, resource in placed:
        if row._read_at is None:
            row._read_under = resource
        elif row._read_under != resource and (fields is None or _name_resource(row, fields)):
            moved.append((row, resource))
        row._read_at = now

    def move() -> None:
        for row, resource in moved:
            row._read_under = resource

    # Until then the row may still go back to where it was.
    if moved:
        transaction.on_commit(move, using=using)


@cache
def _naming_fields(template: str) -> tuple[str, ...]:
    return tuple(name for kind, name in parse_template(template) if kind == "field")


def _name_resource(row: "FencedModel", fields: Collection[str]) -> bool:
    return any(
        field.attname in _naming_fields(row.lease_resource) and not {field.name, field.attname}.isdisjoint(fields)
        for field in row._meta.concrete_fields
    )


def _lease_of(row: "FencedModel", using: str) -> Lease:
    return _held(row.resource(), using)


def _held(resource: str, using: str) -> Lease:
    lease = current_lease(resource, using=using)
    if lease is None:
        raise NotHeld(resource)
    lease.check()
    return lease


def _fence_table(sender: type[models.Model], **kwargs: object) -> None:
    """Give every concrete fenced model its triggers, also one whose Meta forgets to inherit."""
    meta = sender._meta
    if not issubclass(sender, FencedModel) or meta.abstract or meta.proxy or meta.swapped or not meta.managed:
        return
    template = getattr(sender, "lease_resource", None)
    if isinstance(template, str):  # if not, leases.E001 says so
        for trigger in fence_triggers(template):
            trigger.register(cast(Any, sender))


class_prepared.connect(_fence_table, dispatch_uid="leases.fence_table")
