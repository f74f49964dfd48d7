"""What the database knows about jobs: which ran, and which a person ran again."""

from django.db import models

from leases.resources import MAX_LENGTH

#: Keys also name leases, as `once:<key>`, and those have at most 255 characters.
MAX_KEY_LENGTH = 250
#: Names of functions and of people.
MAX_NAME_LENGTH = 255
#: Dramatiq's have 36 characters; a hash in hexadecimal has 64.
MAX_MESSAGE_ID_LENGTH = 64


class Receipt(models.Model):
    """One job that ran, or is set aside: whoever asks for its key again gets this row's outcome and nothing runs."""

    class State(models.TextChoices):
        DONE = "done", "done"
        STARTED = "started", "started, its effect is outside the database"
        PARKED = "parked", "parked: whether it took effect is not known"

    key = models.CharField(max_length=MAX_KEY_LENGTH, help_text="What must happen once.")
    actor = models.CharField(max_length=MAX_NAME_LENGTH, help_text="The function whose key it is.")
    state = models.CharField(max_length=16, choices=State.choices)
    outcome = models.JSONField(null=True, blank=True, help_text="What the first run returned.")
    reason = models.TextField(blank=True, help_text="Why it is parked.")
    attempts = models.IntegerField(default=1, help_text="Runs that were started.")
    token = models.BigIntegerField(null=True, blank=True, help_text="The lease of the last run outside the database.")
    message_id = models.CharField(
        max_length=MAX_MESSAGE_ID_LENGTH, blank=True, help_text="The broker message of the last run."
    )
    ran_at = models.DateTimeField(help_text="Database time when the last run began.")
    asked_again = models.BigIntegerField(default=0, help_text="How often others asked for it since.")
    last_asked_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True, help_text="When it may be pruned; empty means never.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["key"], name="leases_receipt_key_once")]
        indexes = [
            models.Index(
                fields=["expires_at"], condition=models.Q(expires_at__isnull=False), name="leases_receipt_expiring"
            ),
            models.Index(fields=["ran_at"], name="leases_receipt_ran"),
            models.Index(fields=["id"], condition=~models.Q(state="done"), name="leases_receipt_unfinished"),
            models.Index(
                fields=["last_asked_at"],
                condition=models.Q(last_asked_at__isnull=False),
                name="leases_receipt_asked_again",
            ),
        ]
        permissions = [("reopen_receipt", "Can open keys again")]

    def __str__(self) -> str:
        return self.key


class Reopening(models.Model):
    """A key that a person opened again, with the receipt that was thrown away for it."""

    key = models.CharField(max_length=MAX_KEY_LENGTH)
    actor = models.CharField(max_length=MAX_NAME_LENGTH)
    by = models.CharField(max_length=MAX_NAME_LENGTH, help_text="Who opened it again.")
    reason = models.TextField()
    state = models.CharField(max_length=16, choices=Receipt.State.choices, help_text="The receipt's state until then.")
    outcome = models.JSONField(null=True, blank=True)
    ran_at = models.DateTimeField(help_text="When the job had run.")
    asked_again = models.BigIntegerField(default=0)
    reopened_at = models.DateTimeField(help_text="Database time.")

    class Meta:
        indexes = [models.Index(fields=["key"], name="leases_reopening_key")]

    def __str__(self) -> str:
        return f"{self.key}, by {self.by}"


class Turn(models.Model):
    """The place of one job in the line for a resource (on_conflict="serial")."""

    resource = models.CharField(max_length=MAX_LENGTH)
    message_id = models.CharField(max_length=MAX_MESSAGE_ID_LENGTH)
    seen_at = models.DateTimeField(help_text="Database time when the job last looked whether its turn has come.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["resource", "message_id"], name="leases_turn_once_per_job")]

    def __str__(self) -> str:
        return f"{self.message_id} for {self.resource}"


class DeadLetter(models.Model):
    """A broker message that failed for good, with its reason, until a person decides what becomes of it."""

    message_id = models.CharField(max_length=MAX_MESSAGE_ID_LENGTH)
    queue = models.CharField(max_length=255)
    actor = models.CharField(max_length=255)
    args = models.JSONField(default=list)
    kwargs = models.JSONField(default=dict)
    options = models.JSONField(default=dict)
    is_exact = models.BooleanField(
        default=True, help_text="Off: what it carried could only be kept as text, so it cannot be replayed."
    )
    key = models.CharField(max_length=MAX_KEY_LENGTH, blank=True, help_text="Its key, if its actor is @once.")
    reason = models.TextField(help_text="The last error.")
    traceback = models.TextField(blank=True)
    died_at = models.DateTimeField(help_text="Database time.")
    replay_asked_at = models.DateTimeField(null=True, blank=True)
    replayed_at = models.DateTimeField(null=True, blank=True)
    replayed_by = models.CharField(max_length=255, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["died_at"], name="leases_deadletter_died"),
            models.Index(fields=["queue"], condition=models.Q(replayed_at__isnull=True), name="leases_deadletter_open"),
        ]
        permissions = [("replay_deadletter", "Can replay dead letters")]

    def __str__(self) -> str:
        return f"{self.actor} {self.message_id}"


class Slot(models.Model):
    """One moment at which a schedule was due; there is at most one row per schedule and moment."""

    class State(models.TextChoices):
        DUE = "due", "due: about to be enqueued"
        FIRED = "fired", "enqueued"
        MISSED = "missed", "missed, and left out by the schedule's policy"
        FIRST_SEEN = "first_seen", "the schedule was seen for the first time"

    schedule = models.CharField(max_length=100)
    due_at = models.DateTimeField(help_text="When the schedule says.")
    state = models.CharField(max_length=16, choices=State.choices)
    message_id = models.CharField(max_length=MAX_MESSAGE_ID_LENGTH, blank=True)
    recorded_at = models.DateTimeField(help_text="Database time when a scheduler took it up.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["schedule", "due_at"], name="leases_slot_once")]
        indexes = [models.Index(fields=["id"], condition=models.Q(state="due"), name="leases_slot_due")]

    def __str__(self) -> str:
        return f"{self.schedule} at {self.due_at}"


class Queue(models.Model):
    """A queue of the broker, shown in the admin; it has no table."""

    name = models.CharField(max_length=255, primary_key=True)

    class Meta:
        managed = False
        default_permissions = ("view",)

    def __str__(self) -> str:
        return self.name
