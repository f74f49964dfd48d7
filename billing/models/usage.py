from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class UsageEvent(models.Model):
    """One measured fact; `source` and `key` name it for ever, `invoice` says what it was invoiced on.

    With an `amount` it arrives priced (a FOCUS row) and `currency` is that of the amount; without one it is rated by
    the price of its metric at `occurred_at`.
    """

    source = models.CharField(max_length=100)
    key = models.CharField(max_length=200)
    customer = models.ForeignKey("billing.Customer", on_delete=models.PROTECT, db_index=False, related_name="usage")
    metric = models.CharField(max_length=300)
    subject = models.CharField(max_length=300, blank=True, help_text="What was metered: a host, a project.")
    quantity = models.DecimalField(max_digits=33, decimal_places=15)
    amount = models.DecimalField(max_digits=33, decimal_places=15, null=True, blank=True)
    currency = models.CharField(max_length=3, blank=True)
    tax_category = models.CharField(max_length=30, blank=True)
    occurred_at = models.DateTimeField()
    received_at = models.DateTimeField(db_default=Now(), editable=False)
    digest = models.CharField(max_length=64, help_text="SHA-256 of the content, to tell a repeat from a conflict.")
    # A trigger in the migration sees to it that usage is not claimed for an invoice of somebody else.
    invoice = models.ForeignKey(
        "billing.Invoice",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        db_index=False,
        db_constraint=False,
        related_name="usage",
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["source", "key"], name="billing_usage_once"),
            models.CheckConstraint(
                condition=Q(amount=None, currency="", tax_category="")
                | (Q(amount__isnull=False) & ~Q(currency="") & ~Q(tax_category="")),
                name="billing_usage_priced_or_not",
            ),
        ]
        indexes = [
            models.Index(fields=["customer", "occurred_at"], condition=Q(invoice=None), name="billing_usage_unclaimed"),
            models.Index(fields=["invoice"], condition=Q(invoice__isnull=False), name="billing_usage_of_invoice"),
        ]

    def __str__(self) -> str:
        return f"{self.source}:{self.key}"
