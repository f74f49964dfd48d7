"""The outbox: one row per message."""

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Least, Now


class State(models.TextChoices):
    """Where a message stands; the picture is in the package's docstring."""

    PENDING = "pending", "pending"
    CLAIMED = "claimed", "claimed"
    SENDING = "sending", "sending"
    SENT = "sent", "sent"
    IN_DOUBT = "in_doubt", "in doubt"
    DEAD = "dead", "dead"
    CANCELLED = "cancelled", "cancelled"


class Message(models.Model):
    """Something to send, written in the transaction that decided it. Written by publish() and the drainer only."""

    channel = models.TextField(help_text="Which of OUTBOX_CHANNELS sends it.")
    dedupe_key = models.TextField(
        help_text="Names what this message tells about; there is one message per key, for ever."
    )
    digest = models.TextField(help_text="SHA-256 of channel and content as the caller gave them; outlives pruning.")
    payload = models.JSONField(null=True, help_text="What is handed over, rendered at publish; NULL once pruned.")
    state = models.TextField(choices=State.choices, default=State.PENDING, db_default=State.PENDING)
    available_at = models.DateTimeField(db_default=Now(), help_text="Not sent before.")
    deadline_at = models.DateTimeField(null=True, help_text="Not sent after.")
    attempts = models.IntegerField(default=0, db_default=0, help_text="How often it was about to be handed over.")
    first_attempt_at = models.DateTimeField(null=True)
    resend_until = models.DateTimeField(
        null=True, help_text="An attempt's outcome is unknown; until then its receiver recognises a repetition."
    )
    claim = models.BigIntegerField(null=True, help_text="Number of the claim that last took it; higher is later.")
    claimed_until = models.DateTimeField(null=True)
    drainer = models.TextField(default="", db_default="", help_text="Who claimed it last, for people.")
    last_error = models.TextField(default="", db_default="")
    sent_at = models.DateTimeField(null=True)
    provider_id = models.TextField(default="", db_default="", help_text="The receiver's words on accepting it.")
    refused = models.JSONField(
        default=dict, db_default={}, help_text="Recipients the receiver refused, with its words."
    )
    history = models.JSONField(default=list, db_default=[], help_text="Attempts that were not accepted, oldest first.")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        default_permissions = ("view",)
        permissions = [("decide_message", "Can decide about messages that need a person")]
        constraints = [
            models.UniqueConstraint(fields=["dedupe_key"], name="outbox_message_dedupe_key"),
            models.CheckConstraint(condition=Q(state__in=State.values), name="outbox_message_state_known"),
            models.CheckConstraint(
                condition=Q(state__in=[State.CLAIMED, State.SENDING], claim__isnull=False, claimed_until__isnull=False)
                | (~Q(state__in=[State.CLAIMED, State.SENDING]) & Q(claimed_until__isnull=True)),
                name="outbox_message_claim_while_held",
            ),
            models.CheckConstraint(
                condition=Q(state=State.SENT, sent_at__isnull=False) | (~Q(state=State.SENT) & Q(sent_at__isnull=True)),
                name="outbox_message_sent_at_if_sent",
            ),
            models.CheckConstraint(condition=Q(attempts__gte=0), name="outbox_message_attempts_not_negative"),
            models.CheckConstraint(condition=~Q(dedupe_key=""), name="outbox_message_dedupe_key_not_empty"),
            models.CheckConstraint(
                condition=Q(payload__isnull=False) | Q(state__in=[State.SENT, State.CANCELLED]),
                name="outbox_message_pruned_only_when_done",
            ),
        ]
        indexes = [
            # One channel's due messages in order; the claim reads nothing else.
            models.Index(
                "channel", "available_at", "id", condition=Q(state=State.PENDING), name="outbox_message_pending"
            ),
            # What expired; only the sweep uses it, see sql/mark_and_intend.sql.
            models.Index(
                "claimed_until", condition=Q(state__in=[State.CLAIMED, State.SENDING]), name="outbox_message_held"
            ),
            # What may not be sent any more; only sql/expire.sql uses it.
            models.Index(
                Least("deadline_at", "resend_until"),
                condition=Q(state=State.PENDING) & (Q(deadline_at__isnull=False) | Q(resend_until__isnull=False)),
                name="outbox_message_limited",
            ),
            # What waits after an attempt that failed, for whoever looks how things stand.
            models.Index(
                "channel",
                "available_at",
                condition=Q(state=State.PENDING) & ~Q(last_error=""),
                name="outbox_message_retrying",
            ),
            # What waits for a person, or was taken back.
            models.Index(
                "state",
                F("id").desc(),
                condition=Q(state__in=[State.IN_DOUBT, State.DEAD, State.CANCELLED]),
                name="outbox_message_parked",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.channel} message {self.dedupe_key} ({self.state})"


class Decision(models.Model):
    """What a person decided about a message: who, when, why. Never changed, never deleted on its own."""

    message = models.ForeignKey(Message, on_delete=models.CASCADE, related_name="decisions")
    action = models.TextField()
    reason = models.TextField()
    by = models.TextField(help_text="The user, as the admin or the operating system knows them.")
    state_before = models.TextField(choices=State.choices)
    state_after = models.TextField(choices=State.choices)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.action} by {self.by}"


class DatabaseIdentity(models.Model):
    """Which database made the promises; one row."""

    system_identifier = models.TextField()
    timeline = models.BigIntegerField()
    database_oid = models.BigIntegerField(help_text="Another one after a copy by CREATE DATABASE ... TEMPLATE.")
    table_oid = models.BigIntegerField(help_text="This table's own; another one after a restore by pg_restore.")
    stored_at = models.DateTimeField(help_text="Database time when it was accepted.")

    class Meta:
        default_permissions = ("view",)
        verbose_name_plural = "database identity"
        constraints = [models.CheckConstraint(condition=Q(id=1), name="outbox_one_database_identity")]

    def __str__(self) -> str:
        return f"{self.system_identifier} on timeline {self.timeline}"
