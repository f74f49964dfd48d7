"""Noticing a database that forgot what it had promised, and putting it right.

A replica that was promoted before it had everything, and a backup restored to an earlier moment, have lost marks: a
message that was sent may look unsent again. The first changes the timeline. The second changes the system identifier,
or, on the same server, the oid of the table it makes anew, or that of the database if it was copied as a template. All
are stored here and compared on every new connection. After a change no drainer claims anything until every message that
may have been sent was put in doubt. A copy of the files keeps all of them, as does a restore of the rows alone, and is
not noticed: then a person runs the command.
"""

import logging
import time
import weakref
from typing import Any

from django.db import connections, transaction

from outbox import channels
from outbox.conf import settings
from outbox.errors import DatabaseForgot, identity
from outbox.statements import statement

logger = logging.getLogger("outbox.forgetting")

# Behind a pooler one connection outlives its server, so it is asked again from time to time.
_ASK_AGAIN_AFTER_S = 10.0

_STORED = "SELECT system_identifier, timeline, database_oid, table_oid FROM outbox_databaseidentity WHERE id = 1"
_STORE = """
INSERT INTO outbox_databaseidentity AS i (id, system_identifier, timeline, database_oid, table_oid, stored_at)
VALUES (1, %s, %s, %s, %s, clock_timestamp())
ON CONFLICT (id) DO UPDATE SET system_identifier = excluded.system_identifier, timeline = excluded.timeline,
                               database_oid = excluded.database_oid, table_oid = excluded.table_oid,
                               stored_at = excluded.stored_at
 WHERE %s
"""
# Drainers of before may hold numbers that this database does not know of.
_SKIP_NUMBERS = "SELECT setval('outbox_claim', nextval('outbox_claim') + 1000000)"

_asked: "weakref.WeakKeyDictionary[Any, float]" = weakref.WeakKeyDictionary()


def verify(using: str) -> None:
    """Return if the database is the one that made the promises; raise DatabaseForgot if it may have lost some.

    Asked once per connection and then every 10 s; the first database ever seen is stored as the one.
    """
    wrapper = connections[using]
    wrapper.ensure_connection()
    asked = _asked.get(wrapper.connection)
    if asked is not None and time.monotonic() - asked < _ASK_AGAIN_AFTER_S:
        return
    with wrapper.cursor() as cursor:
        cursor.execute(statement("identity"))
        found = cursor.fetchone()
        cursor.execute(_STORED)
        stored = cursor.fetchone()
        if stored is None:
            cursor.execute(_STORE, [*found, False])
        elif stored != found:
            raise DatabaseForgot(using, stored, found)
    _asked[wrapper.connection] = time.monotonic()


def put_right(using: str, *, nothing_lost: bool = False, dry_run: bool = False) -> int:
    """Put every message in doubt that may have been sent, and accept the database as it is; return how many.

    Left as they are: messages that were never due yet, and those of channels that send again when in doubt. With
    `nothing_lost`, after a failover to a synchronous standby, only the database's new identity is stored. With
    `dry_run` nothing is changed.
    """
    parked = 0
    made = [channels.channel(name) for name in channels.names()]
    values: dict[str, Any] = {
        "resending": [channel.name for channel in made if channel.resend_when_in_doubt],
        "max_ttl": settings.MAX_CLAIM_TTL,
    }
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        if not nothing_lost:
            cursor.execute(_SKIP_NUMBERS)
            cursor.execute(statement("forgot"), values)
            parked = cursor.rowcount
        cursor.execute(statement("identity"))
        found = cursor.fetchone()
        cursor.execute(_STORE, [*found, True])
        transaction.set_rollback(dry_run, using=using)
    if dry_run:
        return parked
    logger.warning(
        "accepted %s; put %d messages in doubt",
        identity(found),
        parked,
        extra={"event": "outbox.put_right", "parked": parked},
    )
    return parked
