"""Fenced tables for the tests of `leases`, which must not need the billing app."""

from typing import ClassVar

from django.db import models

from leases import FencedManager, FencedModel


class Account(models.Model):
    """What entries belong to; not fenced."""

    name = models.CharField(max_length=50)

    def __str__(self) -> str:
        return self.name


class Entry(FencedModel):
    """A fenced row; its resource is the account."""

    lease_resource = "account:{account_id}"

    account = models.ForeignKey(Account, on_delete=models.CASCADE, related_name="entries")
    amount_minor = models.BigIntegerField(default=0)
    memo = models.CharField(max_length=50, default="")

    objects: ClassVar[FencedManager] = FencedManager()

    def __str__(self) -> str:
        return f"{self.account_id}: {self.amount_minor}"


class Forgetful(FencedModel):
    """A fenced model whose Meta forgets to inherit; it must be fenced all the same."""

    lease_resource = "book's {region}/{account_id}"

    account_id = models.BigIntegerField()
    region = models.CharField(max_length=20)

    class Meta:
        verbose_name_plural = "forgetful"

    def __str__(self) -> str:
        return self.region


class Plain(models.Model):
    """Entry without the fence, to compare with."""

    account = models.ForeignKey(Account, on_delete=models.CASCADE, related_name="+")
    amount_minor = models.BigIntegerField(default=0)
    memo = models.CharField(max_length=50, default="")
    token = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.account_id}: {self.amount_minor}"
