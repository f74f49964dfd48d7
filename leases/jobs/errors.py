"""What jobs that run once raise; one class per cause, as in `leases.errors`."""

from datetime import timedelta

from leases.errors import LeaseError


class InvalidKey(LeaseError, ValueError):
    """The arguments of a job give no key that could name it alone."""

    def __init__(self, key: object, *, reason: str) -> None:
        self.key = key
        self.reason = reason
        super().__init__(f"{key!r:.300} cannot be the key of a job that runs once: {reason}.")


class KeyTaken(LeaseError):
    """Another actor has used the key; nothing ran, give the two actors keys of their own."""

    def __init__(self, key: str, *, actor: str, owner: str) -> None:
        self.key = key
        self.actor = actor
        self.owner = owner
        super().__init__(
            f"{actor} asked for the key {key!r}, which {owner} has used. Nothing ran. Give the two different keys, or, "
            f"if the function was moved or renamed, keep its name with once(..., name={owner!r})."
        )


class ReceiptBusy(LeaseError):
    """Another run of the same key has not committed yet; ask again later."""

    def __init__(self, key: str, *, waited: timedelta) -> None:
        self.key = key
        self.waited = waited
        super().__init__(
            f"Another run of {key!r} had not ended after {waited.total_seconds():.1f} s; nothing ran, ask again later."
        )


class ReceiptUnfinished(LeaseError):
    """The key was started by a version of the actor whose effect was outside the database, and did not end."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f"{key!r} was started when its actor still said on_crash=..., and its outcome is not known. Nothing ran. "
            "Find out what became of it, then open the key again."
        )


class OutcomeNotJson(LeaseError, TypeError):
    """A job that may run once returned what cannot be kept for those who ask again; its effect was rolled back."""

    def __init__(self, key: str, *, outcome: object, reason: str) -> None:
        self.key = key
        self.outcome = outcome
        try:
            shown = f"{outcome!r:.100}"
        except Exception:
            shown = f"a {type(outcome).__name__}"
        super().__init__(
            f"The run of {key!r} returned {shown}, which cannot be kept: {reason}. "
            "Its effect was rolled back. Return JSON, or nothing."
        )


class EffectRolledBack(LeaseError):
    """A job that may run once returned, but its transaction cannot commit: its effect and its receipt are gone."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f"The run of {key!r} returned, but its transaction can only be rolled back: its body swallowed a database "
            "error, closed the connection or called set_rollback(). Nothing was kept, and it counts as failed. "
            "Put what may fail into a transaction.atomic() of its own, or let the error out."
        )


class TransactionEnded(LeaseError):
    """The body of a job that may run once ended the transaction of its receipt by SQL; it was stopped there."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f"The run of {key!r} executed a COMMIT or ROLLBACK, which ended the transaction that its receipt is in. "
            "After a ROLLBACK nothing was kept; after a COMMIT the receipt was, with what had been done until then. "
            "Take the statement out of the body; transaction.atomic() makes a savepoint."
        )


class ReceiptMissing(LeaseError, LookupError):
    """There is no receipt for the key, so there is nothing to open again."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"There is no receipt for {key!r}: it never ran, or was opened again already.")


class AlreadyReplayed(LeaseError):
    """The dead letter was replayed before; look what became of that message first."""

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        super().__init__(f"The message {message_id} was enqueued again already, or is being so. Nothing was done.")


class AlreadyDone(LeaseError):
    """The job of a dead letter has been done, or set aside, under its key since."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f"{key!r} has a receipt, so replaying its message would run nothing. Open the key again first."
        )


class ActorUnknown(LeaseError, LookupError):
    """The dead letter names an actor that this version of the code does not have."""

    def __init__(self, actor: str) -> None:
        self.actor = actor
        super().__init__(
            f"There is no actor {actor!r} here, so nobody would run the message. Nothing was done; if the actor was "
            "renamed, enqueue the job yourself."
        )


class LetterInexact(LeaseError):
    """What the message carried could not be kept as it was, so a replay would run something else."""

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        super().__init__(
            f"What the message {message_id} carried could not be kept exactly, so it cannot be replayed. Nothing was "
            "done; read it in the dead letter, and enqueue the job yourself."
        )


class InvalidSchedule(LeaseError, ValueError):
    """An entry of LEASES_SCHEDULE cannot be understood; none of its slots is fired until it is put right."""

    def __init__(self, name: str, *, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"LEASES_SCHEDULE[{name!r}] cannot be used: {reason}.")
