"""Whose turn it is: jobs on one resource, one after another in the order in which they first came to a worker."""

import logging
from datetime import timedelta

from django.db import DatabaseError, connections

from leases import fence
from leases.conf import conf
from leases.errors import LeaseBusy, LeaseUnavailable
from leases.jobs.messages import put_back

logger = logging.getLogger("leases")

#: A job far back in the line looks again after this many delays at most.
_MAX_DELAYS = 20
#: Places, by alias, resource and message, whose jobs ended while the database was away: given up with the next look.
_left: set[tuple[str, str, str]] = set()

# Keeps or takes a place in the line, clears away places of jobs that have not looked for too long (their message is
# lost, or stands in a long queue), and counts who is in front.
_LOOK = """
WITH gone AS (
  DELETE FROM leases_turn WHERE id = ANY(ARRAY(
    SELECT id FROM leases_turn
     WHERE resource = %(resource)s AND message_id <> %(message_id)s
       AND seen_at < clock_timestamp() - %(patience)s::interval
       FOR UPDATE SKIP LOCKED))),
mine AS (
  INSERT INTO leases_turn (resource, message_id, seen_at) VALUES (%(resource)s, %(message_id)s, clock_timestamp())
  ON CONFLICT (resource, message_id) DO UPDATE SET seen_at = excluded.seen_at
  RETURNING id)
SELECT count(t.id) FROM mine LEFT JOIN leases_turn t
    ON t.resource = %(resource)s AND t.id < mine.id AND t.seen_at >= clock_timestamp() - %(patience)s::interval
"""


class Turn:
    """The place of the current message in the line for `resource`.

    It only orders; what keeps two from running at once is the lease. A job that fails, or loses its lease, goes to
    the end of the line, so that one bad job does not stop all behind it.
    """

    def __init__(self, resource: str, *, message_id: str, using: str) -> None:
        self.resource = resource
        self.message_id = message_id
        self.using = using
        self._waiting = False

    def has_come(self) -> bool:
        """Say whether nobody is in front; otherwise send the message back to look again soon."""
        patience = f"{conf.TURN_PATIENCE.total_seconds()} s"
        try:
            fence.reopen_if_closed(self.using)
            for place in _left.copy():
                if place[0] == self.using:
                    _give_up(place)
            with connections[self.using].cursor() as cursor:
                cursor.execute(_LOOK, {"resource": self.resource, "message_id": self.message_id, "patience": patience})
                ahead = int(cursor.fetchone()[0])
        except DatabaseError as error:
            put_back(LeaseUnavailable(self.resource, reason=f"the database does not answer as it should ({error})"))
            return False
        if ahead:
            busy = LeaseBusy(self.resource, holder=f"{ahead} jobs that came first", retry_after=conf.TURN_DELAY)
            self.wait_on(busy, ahead=ahead)
        return not ahead

    def wait_on(self, busy: LeaseBusy, *, ahead: int = 1) -> None:
        """Keep the place and look again soon: the resource is still busy."""
        self.keep()
        delay: timedelta = conf.TURN_DELAY * min(ahead, _MAX_DELAYS)
        put_back(busy, delay=delay)

    def keep(self) -> None:
        """Keep the place beyond this run: the job could not begin, and its message comes again soon."""
        self._waiting = True

    def end(self) -> None:
        """Give up the place unless it is to be kept.

        An error is logged, not raised: the work is done. The place is given up with this process' next look, and passed
        over after LEASES_TURN_PATIENCE.
        """
        if self._waiting:
            return
        try:
            fence.reopen_if_closed(self.using)
            _give_up((self.using, self.resource, self.message_id))
        except DatabaseError as error:
            _left.add((self.using, self.resource, self.message_id))
            logger.warning("The place of a job on %s could not be given up: %s", self.resource, error)


def _give_up(place: tuple[str, str, str]) -> None:
    using, resource, message_id = place
    with connections[using].cursor() as cursor:
        cursor.execute("DELETE FROM leases_turn WHERE resource = %s AND message_id = %s", [resource, message_id])
    _left.discard(place)
