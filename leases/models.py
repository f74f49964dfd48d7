"""What the database knows about leases: fences, the record of each lease, incidents, and what people did to them."""

from typing import TYPE_CHECKING

from django.db import models

from leases.jobs.models import DeadLetter as DeadLetter
from leases.jobs.models import Queue as Queue
from leases.jobs.models import Receipt as Receipt
from leases.jobs.models import Reopening as Reopening
from leases.jobs.models import Slot as Slot
from leases.jobs.models import Turn as Turn
from leases.resources import MAX_LENGTH

if TYPE_CHECKING:
    from leases.inspection import Live


class Fence(models.Model):
    """Remembers a resource's current token; writes under any other are refused."""

    resource = models.CharField(max_length=MAX_LENGTH, primary_key=True)
    token = models.BigIntegerField(help_text="The only token that writes are accepted under; it only goes up.")
    holder = models.CharField(max_length=32, help_text="Whose token it is.")
    changed_at = models.DateTimeField(help_text="Database time of the last acquisition.")

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(token__gt=0), name="leases_fence_token_positive")]

    def __str__(self) -> str:
        return f"{self.resource} at {self.token}"


class LeaseRecord(models.Model):
    """One lease from its grant to its end; the row that shows who worked and how it ended."""

    class End(models.TextChoices):
        RELEASED = "released", "released by its holder"
        LOST = "lost", "noticed as lost by its holder's process"
        EXPIRED = "expired", "expired without a word from its holder"
        BROKEN = "broken", "broken by a person"

    resource = models.CharField(max_length=MAX_LENGTH)
    token = models.BigIntegerField()
    holder = models.CharField(max_length=32)
    ttl_ms = models.BigIntegerField()
    host = models.CharField(max_length=255)
    pid = models.BigIntegerField()
    process_started = models.CharField(max_length=32, blank=True)
    thread = models.CharField(max_length=255, blank=True)
    acquired_at = models.DateTimeField(help_text="Database time of the registration.")
    ended_at = models.DateTimeField(null=True, blank=True, help_text="Database time of the lease's end.")
    end = models.CharField(max_length=16, choices=End.choices, blank=True)

    class Meta:
        verbose_name = "lease record"
        permissions = [("break_lease", "Can break a lease")]
        constraints = [
            # The pattern operators serve equality and, for the admin's search, prefixes.
            models.UniqueConstraint(
                fields=["resource", "token"],
                opclasses=["varchar_pattern_ops", "int8_ops"],
                name="leases_record_once_per_token",
            ),
            models.CheckConstraint(
                condition=models.Q(ended_at__isnull=True, end="")
                | models.Q(ended_at__isnull=False) & ~models.Q(end=""),
                name="leases_record_end_and_time_together",
            ),
        ]
        indexes = [
            models.Index(fields=["resource"], condition=models.Q(ended_at__isnull=True), name="leases_record_unended"),
            models.Index(fields=["acquired_at"], name="leases_record_acquired"),
            # For people: what has not ended by age, and the few among millions that did not end well.
            models.Index(
                fields=["acquired_at"], condition=models.Q(ended_at__isnull=True), name="leases_record_unended_age"
            ),
            models.Index(
                fields=["end", "acquired_at"],
                condition=models.Q(end__in=["lost", "expired", "broken"]),
                name="leases_record_badly_ended",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.resource} under {self.token}"


class HeldLease(LeaseRecord):
    """A lease that has not ended, as far as its record knows; `live` is what Redis says of it, once asked."""

    live: "Live | None" = None

    class Meta:
        proxy = True
        verbose_name = "lease"


class Incident(models.Model):
    """A lease that ended without release while its holder was, or may have been, still running."""

    class Detector(models.TextChoices):
        RENEWAL_REFUSED = "renewal_refused", "a renewal found another holder"
        KEY_GONE = "key_gone", "a renewal found no key"
        DEADLINE_PASSED = "deadline_passed", "the deadline passed without a renewal"
        HELD_TOO_LONG = "held_too_long", "held for longer than LEASES_MAX_HOLD"
        RELEASE_REFUSED = "release_refused", "the release found the key gone or taken"
        UNRELEASED_RECORD = "unreleased_record", "the next holder found an unreleased record"
        STALE_WRITE = "stale_write", "a stale token was presented"
        WATCHER = "watcher", "the watcher found it expired"
        MEMORY_LOST = "memory_lost", "Redis lost its memory"

    class Fate(models.TextChoices):
        RUNNING = "running", "still running: it came back"
        CRASHED = "crashed", "its process is gone"
        UNKNOWN = "unknown", "not known"

    resource = models.CharField(max_length=MAX_LENGTH)
    token = models.BigIntegerField()
    holder = models.CharField(max_length=32)
    detector = models.CharField(max_length=32, choices=Detector.choices, help_text="Who saw it first.")
    fate = models.CharField(max_length=16, choices=Fate.choices, help_text="What became of the holder.")
    host = models.CharField(max_length=255)
    pid = models.BigIntegerField()
    seen_at = models.DateTimeField(help_text="Database time when it was seen first.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["resource", "token"],
                opclasses=["varchar_pattern_ops", "int8_ops"],
                name="leases_one_incident_per_lease",
            )
        ]
        indexes = [models.Index(fields=["seen_at"], name="leases_incident_seen")]

    def __str__(self) -> str:
        return f"{self.resource} under {self.token}: {self.get_detector_display()}"


class DatabaseIdentity(models.Model):
    """Which database made the promises; one row."""

    system_identifier = models.CharField(max_length=32)
    timeline = models.BigIntegerField()
    database_oid = models.BigIntegerField(help_text="Another one after a copy by CREATE DATABASE ... TEMPLATE.")
    table_oid = models.BigIntegerField(help_text="This table's own; another one after a restore by pg_restore.")
    stored_at = models.DateTimeField(help_text="Database time when it was accepted.")

    class Meta:
        verbose_name_plural = "database identity"
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="leases_one_database_identity")]

    def __str__(self) -> str:
        return f"{self.system_identifier} on timeline {self.timeline}"


class RedisMemory(models.Model):
    """What Redis should remember: which server it was, and the marker that was left there.

    Written by the watcher; a Redis that cannot produce both has lost its memory, or part of it.
    """

    alias = models.CharField(max_length=255, primary_key=True, help_text="The cache alias, LEASES_REDIS_ALIAS.")
    run_id = models.CharField(max_length=64)
    marker = models.CharField(max_length=64)
    lost_at = models.DateTimeField(null=True, blank=True, help_text="Database time when a loss was last noticed.")

    class Meta:
        verbose_name_plural = "Redis memory"

    def __str__(self) -> str:
        return self.alias


class Intervention(models.Model):
    """What a person did to leases or past them, and why; never changed, never pruned."""

    class Action(models.TextChoices):
        BREAK = "break", "broke a lease"
        BYPASS = "bypass", "wrote past the fences"
        PRUNE_FENCES = "prune_fences", "pruned fences"
        RAISE_FENCES = "raise_fences", "raised every fence"

    action = models.CharField(max_length=16, choices=Action.choices)
    resource = models.CharField(max_length=MAX_LENGTH, blank=True, help_text="Empty if it was about many.")
    token = models.BigIntegerField(null=True, blank=True, help_text="The token that was broken.")
    reason = models.TextField()
    by = models.CharField(max_length=255, help_text="The person, as the program knows them.")
    database_role = models.CharField(max_length=63, help_text="Whose rights the database saw.")
    at = models.DateTimeField(help_text="Database time.")

    class Meta:
        indexes = [models.Index(fields=["at"], name="leases_intervention_at")]

    def __str__(self) -> str:
        return f"{self.by} {self.get_action_display()}"
