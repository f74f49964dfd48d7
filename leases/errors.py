"""One class per cause; the data are attributes, the sentence says what happened and what to do."""

from datetime import timedelta


class LeaseError(Exception):
    """Base of everything this app raises."""


class LeaseBusy(LeaseError):
    """Another holder has the resource; try again after `retry_after`."""

    def __init__(self, resource: str, *, holder: str, retry_after: timedelta) -> None:
        self.resource = resource
        self.holder = holder
        self.retry_after = retry_after
        super().__init__(
            f"{resource} is leased by {holder} for another {retry_after.total_seconds():.3f} s; try again later."
        )


class LeaseLost(LeaseError):
    """The lease ended while its holder was still working; stop, and let the job run again."""

    def __init__(self, resource: str, *, token: int, reason: str) -> None:
        self.resource = resource
        self.token = token
        self.reason = reason
        super().__init__(f"The lease on {resource} (token {token}) is lost: {reason}. Stop; the job has to run again.")


class LeaseUnavailable(LeaseError):
    """Redis or the database could not answer; nothing was leased or broken, try again when it is back."""

    def __init__(self, resource: str, *, reason: str, action: str = "leased") -> None:
        self.resource = resource
        self.reason = reason
        nothing = "Nothing is held; try" if action == "leased" else "Try"
        super().__init__(f"{resource} could not be {action}: {reason}. {nothing} again later.")


#: System identifier, timeline, and the oids of the database and of the table that keeps all four.
Identity = tuple[str, int, int, int]


def identity(values: Identity) -> str:
    """Return an identity in words."""
    return "system {}, timeline {}, database {}, table {}".format(*values)


class DatabaseForgot(LeaseUnavailable):
    """The database is not the one that made the promises, so fences may be lost; a person has to say how to go on."""

    def __init__(self, *, using: str, stored: Identity, found: Identity) -> None:
        self.using = using
        self.stored = stored
        self.found = found
        self.resource = ""
        self.reason = (
            f"Database {using!r} is now {identity(found)}; it was {identity(stored)}: "
            "a replica was promoted or a backup restored, and fences may be lost"
        )
        LeaseError.__init__(
            self,
            f"{self.reason}. Nothing is leased until `manage.py leases after_failover` has raised every fence "
            "(with --nothing-lost if the standby was synchronous).",
        )


class LeaseCorrupt(LeaseError):
    """The key of a resource holds something that no lease ever wrote; a person has to look."""

    def __init__(self, resource: str, *, key: str, value: str) -> None:
        self.resource = resource
        self.key = key
        self.value = value
        super().__init__(
            f"The Redis key {key} holds {value[:80]!r}, which is not a lease. "
            "Find out what writes there, then delete it."
        )


class StaleToken(LeaseError):
    """The fence is beyond this token: somebody else was granted the resource since; nothing was written."""

    def __init__(self, resource: str, *, token: int, current: int) -> None:
        self.resource = resource
        self.token = token
        self.current = current
        super().__init__(
            f"Token {token} of {resource} is stale, the fence is at {current}. "
            "Nothing was written; the job has to run again."
        )


class FenceMissing(LeaseError):
    """The database no longer knows a token that it once accepted, as after a restore."""

    def __init__(self, resource: str, *, token: int, current: int | None) -> None:
        self.resource = resource
        self.token = token
        self.current = current
        super().__init__(
            f"The fence of {resource} is at {current}, below the granted token {token}: "
            "the database lost what it had accepted. Nothing was written; find out what was restored."
        )


class OldSnapshot(LeaseError):
    """At the transaction's isolation level its snapshot stays as it was before the lease was granted."""

    def __init__(self, resource: str, *, token: int) -> None:
        self.resource = resource
        self.token = token
        super().__init__(
            f"This transaction began before {resource} was leased under token {token}, and its isolation level shows "
            "it nothing newer. Nothing was written; end the transaction, and begin another under the lease."
        )


class TableShadowed(LeaseError):
    """This database session finds another table in place of one that `leases` writes to; nothing was written."""

    def __init__(self, table: str, found: str) -> None:
        self.table = table
        self.found = found
        super().__init__(
            f"This database session {found}. Nothing was written; drop the copy of {table}, or correct search_path."
        )


class NotHeld(LeaseError):
    """A fenced row was about to be written without its resource's lease; take the lease first."""

    def __init__(self, resource: str, *, detail: str = "") -> None:
        self.resource = resource
        super().__init__(
            f"Writing here needs the lease on {resource}, which this thread does not hold{detail}. "
            "Wrap the work in hold(...), and raw SQL in lease.transaction()."
        )


class StaleInstance(LeaseError):
    """The instance was read before the lease was granted, or from another database, so it may be old; read it again."""

    def __init__(self, resource: str, *, instance: str, read_from: str | None = None, using: str | None = None) -> None:
        self.resource = resource
        self.instance = instance
        self.read_from = read_from
        when, how = f"before the lease on {resource} was granted", ""
        if read_from is not None:
            when, how = f"from database {read_from!r}", f", with using({using!r})"
        super().__init__(f"{instance} was read {when} and may be out of date. Read it again inside hold(...){how}.")


class InsideTransaction(LeaseError):
    """A lease was taken or broken inside an open transaction, where the fence's new token would be seen by nobody."""

    def __init__(self, resource: str, *, using: str, action: str = "leased") -> None:
        self.resource = resource
        self.using = using
        super().__init__(
            f"{resource} cannot be {action} inside an open transaction on database {using!r}. "
            "Do that first, then open the transaction (under ATOMIC_REQUESTS: use @non_atomic_requests; in a TestCase: "
            "use leases.testing.holding())."
        )


class InsideCoroutine(LeaseError):
    """`hold()` was used from a coroutine; it would block the event loop."""

    def __init__(self, resource: str) -> None:
        self.resource = resource
        super().__init__(
            f"{resource} cannot be leased from a coroutine. Put the whole body into a function and call it "
            "with asgiref.sync.sync_to_async(...)."
        )


class InvalidResource(LeaseError, ValueError):
    """The name of a resource is empty, too long, or not text that PostgreSQL can store."""

    def __init__(self, resource: object, *, reason: str) -> None:
        self.resource = resource
        self.reason = reason
        super().__init__(f"{resource!r:.100} cannot name a resource: {reason}.")


class InvalidTtl(LeaseError, ValueError):
    """A duration is not a timedelta in the allowed range."""

    def __init__(self, ttl: object, *, reason: str, what: str = "ttl") -> None:
        self.ttl = ttl
        self.reason = reason
        super().__init__(f"{ttl!r} cannot be the {what} of a lease: {reason}.")


class NotLeased(LeaseError):
    """There is no such lease to break: it ended, or another holder has the resource by now."""

    def __init__(self, resource: str, *, token: int | None, current: int | None) -> None:
        self.resource = resource
        self.token = token
        self.current = current
        asked = "is not leased" if token is None else f"is not leased under token {token} any more"
        now = "" if current is None else f"; its lease has token {current} now"
        super().__init__(f"{resource} {asked}{now}. Nothing was changed; look again with `manage.py leases ls`.")


class ReasonMissing(LeaseError, ValueError):
    """An intervention was asked for without a reason; say why, it is kept."""

    def __init__(self) -> None:
        super().__init__("An intervention needs a reason that tells others why it was made; nothing was changed.")
