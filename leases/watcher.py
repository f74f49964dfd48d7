"""The watcher: sees from outside that a lease expired while its record says it is held.

A frozen holder cannot report itself, and without a successor nobody else would. So one process compares the records
that have not ended with the keys in Redis. A record is asked about again only when the key that was seen must have
expired, and an incident is opened only if the record has still not ended at that moment.

Any number of processes may run a watcher; a lease elects the one that watches, and it stands down now and then.
Its name tells whose records are watched, since several databases and projects may share one Redis.
"""

import logging
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from django.db import DatabaseError, connections
from redis.exceptions import RedisError

from leases import fence, headroom, incidents, keys, metrics
from leases.clock import boottime
from leases.conf import conf
from leases.errands import errands
from leases.errors import LeaseBusy, LeaseError
from leases.holding import hold
from leases.lease import Lease
from leases.models import Incident
from leases.process import ProcessIdentity

logger = logging.getLogger("leases")

#: How long the watcher's own lease lasts: so long nobody watches after it crashed.
_TTL = timedelta(seconds=5)
#: How long one watcher watches before another may.
_TERM = timedelta(minutes=10)
#: How often one that is not elected looks whether the place is free.
_CANDIDACY_S = 1.0
#: How often the watcher measures the headroom, which reads the records of a week.
_HEADROOM_EVERY_S = 300.0
#: Keys asked for in one round trip.
_BATCH = 500

_UNENDED = "SELECT id FROM leases_leaserecord WHERE ended_at IS NULL"
_RECORDS = """
SELECT id, resource, token, holder, ttl_ms, host, pid, process_started FROM leases_leaserecord
 WHERE id = ANY(%s) AND ended_at IS NULL
"""


@dataclass(frozen=True, slots=True)
class Record:
    """A record that has not ended: what its holder claims."""

    id: int
    resource: str
    token: int
    holder: str
    ttl_ms: int
    process: ProcessIdentity


class Watcher:
    """Looks for leases that expired under their holders, on the database alias `using`."""

    def __init__(self, *, using: str = "default", stop: threading.Event | None = None) -> None:
        self.using = using
        self.stop = threading.Event() if stop is None else stop
        self._ask_at: dict[int, float] = {}
        self._unsure: set[int] = set()
        self._measure_at = 0.0
        self._failing = False

    def run(self) -> None:
        """Watch whenever no other process does, until `stop` is set; no error of a server ends it."""
        while not self.stop.is_set():
            with self._tolerating_failures():
                fence.reopen_if_closed(self.using)
                resource = fence.place("watcher", using=self.using)
                if resource not in keys.read([resource]):
                    self._watch(resource)
                self._failing = False
            self.stop.wait(_CANDIDACY_S * random.uniform(0.5, 1.5))  # noqa: S311

    def look(self) -> int:
        """Compare once, and return how many leases were taken for expired.

        Raises redis.RedisError and django.db.DatabaseError.
        """
        fence.reopen_if_closed(self.using)
        incidents.check_memory(self.using)
        unended = self._unended()
        self._ask_at = {pk: self._ask_at[pk] for pk in unended if pk in self._ask_at}
        self._unsure &= self._ask_at.keys()
        now = boottime()
        due = [pk for pk in unended if self._ask_at.get(pk, 0.0) <= now]
        suspects: list[Record] = []
        for start in range(0, len(due), _BATCH):
            suspects += self._compare(self._records(due[start : start + _BATCH]))
        for record in suspects:
            self._accuse(record)
        return len(suspects)

    def look_until_sure(self) -> int:
        """Look, and look again at those without a key once their keepers had the time to put one back."""
        expired = self.look()
        while self._unsure and not self.stop.is_set():
            self.stop.wait(max(0.0, min(self._ask_at[pk] for pk in self._unsure) - boottime()))
            expired += self.look()
        return expired

    def _watch(self, resource: str) -> None:
        try:
            with hold(resource, ttl=_TTL, using=self.using) as lease:
                logger.info("This process watches the leases.", extra={"event": "watcher.elected"})
                self._watch_under(lease)
        except LeaseBusy:
            return

    def _watch_under(self, lease: Lease) -> None:
        stand_down_at = boottime() + min(_TERM, conf.MAX_HOLD / 3).total_seconds()
        while boottime() < stand_down_at and not self.stop.is_set():
            lease.check()
            with self._tolerating_failures():
                self.look()
                self._measure_headroom()
                self._failing = False
            self.stop.wait(conf.WATCH_INTERVAL.total_seconds())

    def _measure_headroom(self) -> None:
        """Have the headroom measured beside the watching, which would be blind meanwhile."""
        if boottime() >= self._measure_at:
            self._measure_at = boottime() + _HEADROOM_EVERY_S
            errands.run(
                lambda: metrics.headroom(headroom.measure(self.using)),
                failed="The headroom was not measured; it is the next time.",
            )

    def _compare(self, records: Sequence[Record]) -> Iterator[Record]:
        asked_at = boottime()
        seen = keys.read(record.resource for record in records)
        for record in records:
            self._unsure.discard(record.id)
            key = seen.get(record.resource)
            if key is not None and key.is_of(record.holder, record.token) and key.left != timedelta(0):
                left = timedelta(milliseconds=record.ttl_ms) if key.left is None else key.left
                self._ask_at[record.id] = asked_at + left.total_seconds()
            elif key is None and record.id not in self._ask_at:
                # Never seen alive by this watcher: Redis may have forgotten a lease that its keeper will put back.
                self._ask_at[record.id] = asked_at + record.ttl_ms / 2000
                self._unsure.add(record.id)
            else:
                yield record

    def _unended(self) -> list[int]:
        with connections[self.using].cursor() as cursor:
            cursor.execute(_UNENDED)
            return [pk for (pk,) in cursor.fetchall()]

    def _records(self, pks: Sequence[int]) -> list[Record]:
        with connections[self.using].cursor() as cursor:
            cursor.execute(_RECORDS, [list(pks)])
            rows = cursor.fetchall()
        return [
            Record(pk, resource, token, holder, ttl_ms, ProcessIdentity(host, pid, started))
            for pk, resource, token, holder, ttl_ms, host, pid, started in rows
        ]

    def _accuse(self, record: Record) -> None:
        incidents.report(
            Incident.Detector.WATCHER,
            resource=record.resource,
            token=record.token,
            holder=record.holder,
            process=record.process,
            fate=Incident.Fate.CRASHED if record.process.is_gone() else Incident.Fate.UNKNOWN,
            using=self.using,
        )

    @contextmanager
    def _tolerating_failures(self) -> Iterator[None]:
        """Log the first of many failures, and let the loop go on."""
        try:
            yield
        except (LeaseError, RedisError, DatabaseError) as error:
            if not self._failing:
                logger.warning(
                    "The watcher cannot see: %s. It goes on trying.", error, extra={"event": "watcher.blind"}
                )
            self._failing = True
