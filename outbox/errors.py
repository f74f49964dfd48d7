"""What can go wrong with a message, one class per cause."""


class OutboxError(Exception):
    """The base of every error this app raises on purpose."""


class NotInTransaction(OutboxError):
    """publish() and cancel() belong into the transaction whose outcome they tell about: call them inside atomic()."""

    def __init__(self, what: str, using: str) -> None:
        self.using = using
        super().__init__(
            f"{what} was called outside a transaction on database {using!r}; "
            f"call it inside transaction.atomic(using={using!r}), together with the rows it belongs to"
        )


class InsideTransaction(OutboxError):
    """A drainer commits each of its steps, so it runs outside any transaction."""

    def __init__(self, using: str) -> None:
        self.using = using
        super().__init__(
            f"a drainer was run inside a transaction on database {using!r}, or where AUTOCOMMIT is off: rolled back, "
            f"what it sent would be sent again; run it outside atomic(), in tests in a TransactionTestCase"
        )


class DedupeConflict(OutboxError):
    """The dedupe_key already names a message with another channel or content; choose another key."""

    def __init__(self, dedupe_key: str, message_id: int, digest: str, other_digest: str) -> None:
        self.dedupe_key = dedupe_key
        self.message_id = message_id
        self.digest = digest
        self.other_digest = other_digest
        super().__init__(
            f"dedupe key {dedupe_key!r} belongs to message {message_id}, whose content has the digest "
            f"{digest[:12]}…; this content has {other_digest[:12]}…. One key is one content for ever: "
            f"name the version of what you tell about in the key"
        )


class InvalidContent(OutboxError):
    """The content of a message cannot be sent by its channel; nothing was published."""

    def __init__(self, channel: str, reason: str) -> None:
        self.channel = channel
        self.reason = reason
        super().__init__(f"this content cannot be published on channel {channel!r}: {reason}")


class UnknownChannel(OutboxError):
    """No channel of that name in OUTBOX_CHANNELS."""

    def __init__(self, channel: str, known: list[str]) -> None:
        self.channel = channel
        self.known = known
        super().__init__(
            f"there is no channel {channel!r}; OUTBOX_CHANNELS has {', '.join(map(repr, known)) or 'none'}"
        )


class InvalidSetting(OutboxError):
    """A setting of this app cannot be used as it is."""

    def __init__(self, setting: str, reason: str) -> None:
        self.setting = setting
        self.reason = reason
        super().__init__(f"{setting}: {reason}")


class PermanentFailure(OutboxError):
    """Raised by a channel's send() for what no retry can cure, before anything was handed over; the message is dead."""


class DeadlinePassed(OutboxError):
    """The claim may have run out, so another drainer may hold this message, or its own deadline passed: nothing more is
    handed over."""

    def __init__(self) -> None:
        super().__init__("the time of the claim or of the message ran out before it was handed over; it was not sent")


class DecisionRefused(OutboxError):
    """A person's decision about a message does not go with its state; nothing was changed."""

    def __init__(self, message_id: int, action: str, reason: str) -> None:
        self.message_id = message_id
        self.action = action
        self.reason = reason
        super().__init__(f"message {message_id}: cannot {action!r}: {reason}")


#: System identifier, timeline, and the oids of the database and of the table that keeps all four.
Identity = tuple[str, int, int, int]


def identity(values: Identity) -> str:
    """Return an identity in words."""
    return "system {}, timeline {}, database {}, table {}".format(*values)


class DatabaseForgot(OutboxError):
    """This is another database, or another history of it: messages that look unsent may have been sent."""

    def __init__(self, using: str, stored: Identity, found: Identity) -> None:
        self.using = using
        self.stored = stored
        self.found = found
        super().__init__(
            f"database {using!r} is {identity(found)}, and the outbox knows {identity(stored)}: "
            f"after a failover or a restore, messages that look unsent may have been sent. "
            f"Nothing is claimed until 'manage.py outbox after_failover' has put them in doubt"
        )
