from django.contrib.postgres.fields import DateRangeField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class Run(models.Model):
    """One billing run: a period, a cutoff, and one item per customer."""

    period = DateRangeField()
    cutoff_at = models.DateTimeField(help_text="Usage received later is left for another invoice.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    def __str__(self) -> str:
        return f"run {self.pk}"


class Item(models.Model):
    """One customer in one run; open until its outcome is final (anything but `failed`)."""

    class Outcome(models.TextChoices):
        ISSUED = "issued"
        ALREADY_INVOICED = "already_invoiced"
        SKIPPED = "skipped"
        FAILED = "failed"  # will be tried again
        PARKED = "parked"  # waits for a person

    #: Values of `outcome` under which there is still something to do.
    OPEN = ("", Outcome.FAILED.value)

    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="items")
    customer = models.ForeignKey("billing.Customer", on_delete=models.PROTECT, related_name="items")
    outcome = models.CharField(max_length=20, choices=Outcome.choices, blank=True)
    reason = models.CharField(max_length=1000, blank=True)
    invoice = models.ForeignKey("billing.Invoice", on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    concluded_at = models.DateTimeField(null=True, blank=True)
    attempts = models.PositiveIntegerField(default=0)
    started_at = models.DateTimeField(null=True, blank=True, help_text="Start of the last attempt.")
    retry_at = models.DateTimeField(null=True, blank=True, help_text="When a failed attempt is due again.")
    enqueued_at = models.DateTimeField(null=True, blank=True, help_text="When the broker last got a message for it.")
    rescues = models.PositiveIntegerField(default=0, help_text="How often the broker was given it again unstarted.")

    class Meta:
        permissions = [
            ("retry_item", "Can have an item tried again"),
            ("park_item", "Can set an item aside for a person"),
            ("preview_item", "Can preview the invoice of an item"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["run", "customer"], name="billing_item_once_per_run"),
        ]
        indexes = [
            models.Index(fields=["run", "outcome", "id"], name="billing_item_outcome"),
            models.Index(fields=["run", "id"], condition=Q(outcome="parked"), name="billing_item_parked"),
            models.Index(fields=["id"], condition=Q(outcome="skipped"), name="billing_item_skipped"),
            models.Index(fields=["started_at"], name="billing_item_started"),
            models.Index(fields=["run", "id"], condition=Q(outcome__in=["", "failed"]), name="billing_item_open"),
        ]

    def __str__(self) -> str:
        return f"{self.customer.code} in run {self.run_id}"
