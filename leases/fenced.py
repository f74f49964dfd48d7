"""Models whose rows are written only under the lease on their resource.

The manager sees to it that every write presents the lease this thread holds, and refuses before any SQL when there is
none. The trigger refuses whatever does not come through here: raw SQL, other programs, COPY, cascades.
"""

import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self, TypeVar, cast

from django.db import models, router
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


class FencedQuerySet(models.QuerySet[M]):
    """A queryset whose writes run in a transaction that presents the leases they are made under."""

    def bulk_create(self, objs: Iterable[M], *args: Any, **kwargs: Any) -> list[M]:
        rows = list(objs)
        if kwargs.get("update_fields"):
            kwargs["update_fields"] = {*kwargs["update_fields"], "token"}
        with _writing(rows, self._write_alias()):
            return super().bulk_create(rows, *args, **kwargs)

    def bulk_update(self, objs: Iterable[M], fields: Iterable[str], batch_size: int | None = None) -> int:
        rows = list(objs)
        with _writing(rows, self._write_alias()):
            return super().bulk_update(rows, [*fields, "token"], batch_size=batch_size)

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
        leases = [lease for lease in held_leases(using) if lease.is_held]
        if not leases:
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

    def save(self, **kwargs: Any) -> None:
        using = kwargs.get("using") or router.db_for_write(type(self), instance=self)
        if kwargs.get("update_fields") is not None:
            kwargs["update_fields"] = {*kwargs["update_fields"], "token"}
        with _writing([self], using):
            super().save(**kwargs)

    def delete(self, using: str | None = None, keep_parents: bool = False) -> tuple[int, dict[str, int]]:
        alias = using or router.db_for_write(type(self), instance=self)
        if is_bypassed(alias):
            return super().delete(using=alias, keep_parents=keep_parents)
        with presenting([_lease_of(self, alias)], alias, savepoint=False):
            return super().delete(using=alias, keep_parents=keep_parents)

    @classmethod
    def from_db(cls, db: str | None, field_names: Collection[str], values: Collection[Any], **kwargs: Any) -> Self:
        started = boottime()
        instance = super().from_db(db, field_names, values, **kwargs)
        instance._read_at = _HERE, started
        return instance

    def refresh_from_db(self, *args: Any, **kwargs: Any) -> None:
        started = boottime()
        super().refresh_from_db(*args, **kwargs)
        # Some fields alone, as when a deferred one is looked at, do not make the others new.
        if (args[1] if len(args) > 1 else kwargs.get("fields")) is None:
            self._read_at = _HERE, started

    def resource(self) -> str:
        """Return the name of the resource this row belongs to, as it stands in this instance."""
        return self.lease_resource.format(
            **{name: getattr(self, name) for kind, name in parse_template(self.lease_resource) if kind == "field"}
        )


@contextmanager
def _writing(rows: "Sequence[FencedModel]", using: str) -> Iterator[None]:
    if is_bypassed(using):
        for row in rows:
            row.token = row.token or 0
        yield
        return
    leases: dict[str, Lease] = {}
    for row in rows:
        lease = _lease_of(row, using)
        if row._read_at is not None and (row._read_at[0] != _HERE or row._read_at[1] < lease.granted_at):
            raise StaleInstance(lease.resource, instance=f"{row._meta.label} {row.pk}")
        leases[lease.resource] = lease
        row.token = lease.token
    if not leases:
        yield
        return
    # A row that moves from one resource to another needs both leases, and only the database knows where it was.
    others = [lease for lease in held_leases(using) if lease.resource not in leases and lease.is_held]
    with presenting([*leases.values(), *others], using, savepoint=False):
        yield
    now = boottime()
    for row in rows:
        row._read_at = _HERE, now


def _lease_of(row: "FencedModel", using: str) -> Lease:
    resource = row.resource()
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
    for trigger in fence_triggers(sender.lease_resource):
        trigger.register(cast(Any, sender))


class_prepared.connect(_fence_table, dispatch_uid="leases.fence_table")
