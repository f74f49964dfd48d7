from django.contrib.postgres.fields import DateRangeField
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from billing import money
from leases import FencedModel

# Each table below has the composite foreign key (invoice, customer) and its guards against change in the migration.


class Series(models.Model):
    """A gapless run of document numbers; its row is locked only by the last statements of an issuing transaction."""

    name = models.CharField(max_length=20, primary_key=True)
    next_number = models.BigIntegerField(default=1)

    class Meta:
        verbose_name_plural = "series"

    def __str__(self) -> str:
        return self.name


class Invoice(FencedModel):
    """One issued invoice. At most one that is not void fills a slot (customer, kind, period), and none overlap.

    There are no drafts: a row is committed with its number, its lines and its usage, or not at all, and is never
    changed again except to become void.
    """

    class Kind(models.TextChoices):
        USAGE = "usage"

    class Status(models.TextChoices):
        ISSUED = "issued"
        VOID = "void"

    lease_resource = "customer:{customer_id}"

    customer = models.ForeignKey("billing.Customer", on_delete=models.PROTECT, related_name="invoices")
    kind = models.CharField(max_length=20, choices=Kind.choices, default=Kind.USAGE)
    period = DateRangeField(help_text="Local days of the customer, the last one excluded.")
    version = models.PositiveIntegerField(default=1, help_text="Goes up with each reissue of the slot.")
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.ISSUED)
    series = models.CharField(max_length=20)
    number = models.BigIntegerField(null=True, help_text="Set by the last statement of the issuing transaction.")
    issued_at = models.DateTimeField(null=True)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    cutoff_at = models.DateTimeField()

    currency = models.CharField(max_length=3)
    exponent = models.PositiveSmallIntegerField()
    net_minor = models.BigIntegerField()
    tax_minor = models.BigIntegerField()
    gross_minor = models.BigIntegerField()
    taxes = models.JSONField(
        encoder=DjangoJSONEncoder, help_text="Tax table: category, rate, base_minor, tax_minor of each subtotal."
    )
    customer_snapshot = models.JSONField(help_text="Code, name, email, country and timezone as they were when issued.")
    usage_count = models.BigIntegerField()

    voided_at = models.DateTimeField(null=True, blank=True)
    void_reason = models.CharField(max_length=500, blank=True)

    class Meta(FencedModel.Meta):
        permissions = [
            ("preview_invoice", "Can read the mails of an invoice"),
            ("send_again_invoice", "Can send the mail of an invoice again"),
            ("void_invoice", "Can void an invoice"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["customer", "kind", "period"],
                condition=~Q(status="void"),
                name="billing_invoice_one_live_per_slot",
            ),
            models.UniqueConstraint(
                fields=["customer", "kind", "period", "version"], name="billing_invoice_one_per_version"
            ),
            models.UniqueConstraint(fields=["series", "number"], name="billing_invoice_one_per_number"),
            models.CheckConstraint(
                condition=Q(gross_minor=F("net_minor") + F("tax_minor")), name="billing_invoice_gross_adds_up"
            ),
            models.CheckConstraint(condition=Q(gross_minor__gte=0), name="billing_invoice_not_negative"),
            models.CheckConstraint(
                condition=Q(status="issued", voided_at=None) | Q(status="void", voided_at__isnull=False),
                name="billing_invoice_void_when",
            ),
            models.CheckConstraint(
                condition=Q(number=None, issued_at=None) | Q(number__gte=1, issued_at__isnull=False),
                name="billing_invoice_number_with_date",
            ),
        ]
        indexes = [
            models.Index(fields=["-issued_at"], name="billing_invoice_issued_at"),
            models.Index(fields=["-issued_at"], condition=Q(status="void"), name="billing_invoice_void"),
        ]

    def __str__(self) -> str:
        return self.reference

    @property
    def reference(self) -> str:
        """The number as it is printed: `INV-000042`."""
        return f"{self.series}-{self.number:06d}" if self.number is not None else f"{self.series}-?"


class InvoiceLine(FencedModel):
    """One line: the usage of one metric and subject under one price, rounded once."""

    lease_resource = "customer:{customer_id}"

    invoice = models.ForeignKey(Invoice, on_delete=models.PROTECT, db_constraint=False, related_name="lines")
    customer = models.ForeignKey("billing.Customer", on_delete=models.PROTECT, db_index=False, related_name="+")
    position = models.PositiveIntegerField()
    metric = models.CharField(max_length=300)
    subject = models.CharField(max_length=300, blank=True)
    quantity = models.DecimalField(max_digits=45, decimal_places=15)
    price = models.ForeignKey("billing.Price", on_delete=models.PROTECT, null=True, db_index=False, related_name="+")
    unit_price = models.DecimalField(
        max_digits=24, decimal_places=12, null=True, help_text="Absent where the usage arrived with its amount."
    )
    net_minor = models.BigIntegerField()
    tax_category = models.CharField(max_length=30)
    tax_rate = models.DecimalField(
        max_digits=9, decimal_places=6, null=True, help_text="A fraction; absent where there is nothing to tax."
    )
    usage_count = models.BigIntegerField()

    class Meta(FencedModel.Meta):
        constraints = [
            models.UniqueConstraint(fields=["invoice", "position"], name="billing_line_one_per_position"),
            models.CheckConstraint(
                condition=Q(tax_rate__isnull=False) | Q(net_minor=0), name="billing_line_taxed_or_zero"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.position}. {self.metric} {self.subject}".rstrip()

    @property
    def shown_quantity(self) -> str:
        """The quantity with all its digits, without trailing zeros."""
        return money.exact_text(self.quantity)


class CreditNote(FencedModel):
    """Takes back the whole of one void invoice, under a number of its own."""

    lease_resource = "customer:{customer_id}"

    invoice = models.OneToOneField(Invoice, on_delete=models.PROTECT, db_constraint=False, related_name="credit_note")
    customer = models.ForeignKey("billing.Customer", on_delete=models.PROTECT, related_name="credit_notes")
    series = models.CharField(max_length=20)
    number = models.BigIntegerField()
    issued_at = models.DateTimeField()
    net_minor = models.BigIntegerField()
    tax_minor = models.BigIntegerField()
    gross_minor = models.BigIntegerField()
    reason = models.CharField(max_length=500)

    class Meta(FencedModel.Meta):
        constraints = [
            models.UniqueConstraint(fields=["series", "number"], name="billing_credit_one_per_number"),
            models.CheckConstraint(
                condition=Q(gross_minor=F("net_minor") + F("tax_minor")), name="billing_credit_gross_adds_up"
            ),
        ]
        indexes = [models.Index(fields=["-issued_at"], name="billing_credit_issued_at")]

    def __str__(self) -> str:
        return self.reference

    @property
    def reference(self) -> str:
        """The number as it is printed: `CN-000007`."""
        return f"{self.series}-{self.number:06d}"


class TaxAnswer(FencedModel):
    """One saved answer of the tax service, so that the next attempt pays only for what is missing."""

    lease_resource = "customer:{customer_id}"

    customer = models.ForeignKey("billing.Customer", on_delete=models.PROTECT, db_index=False, related_name="+")
    document = models.CharField(max_length=300)
    content_hash = models.CharField(max_length=64, help_text="SHA-256 of what was asked.")
    rates = models.JSONField(help_text="Line key to rate, the rate as a decimal string.")
    answered_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta(FencedModel.Meta):
        constraints = [
            models.UniqueConstraint(fields=["customer", "document", "content_hash"], name="billing_tax_answer_once"),
        ]

    def __str__(self) -> str:
        return f"{self.document} {self.content_hash[:12]}"
