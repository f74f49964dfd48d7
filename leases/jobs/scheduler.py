"""One scheduler among many fires each slot once.

The leader, by lease, saves the others the work. What makes a slot unique is its row: a leader that was frozen and wakes
after it was replaced finds the row of its successor and fires nothing.

    due ──row inserted──▶ due ──enqueued──▶ fired

A leader that dies between the two leaves a row that is due, and the next leader enqueues its message. If it died after
enqueueing and before saying so, there are two messages; so a scheduled actor is @once, with a key that names the slot.
"""

import logging
import random
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import dramatiq
from django.db import DatabaseError, connections, router
from dramatiq.errors import BrokerConnectionError
from redis.exceptions import RedisError

from leases import fence
from leases.clock import boottime
from leases.conf import conf
from leases.errors import LeaseBusy, LeaseError
from leases.holding import hold
from leases.jobs.models import Slot
from leases.jobs.schedules import Schedule
from leases.lease import Lease

logger = logging.getLogger("leases")

#: How long a leader leads before it stands for election again; no lease is held for longer than LEASES_MAX_HOLD.
_TERM = timedelta(minutes=10)
_TTL = timedelta(seconds=15)
#: How often somebody who is not the leader tries to become it.
_CANDIDACY_S = 2.0
#: How often a leader looks, at least; between, it sleeps until the next slot.
_LOOK_EVERY_S = 1.0
#: Of the slots that were missed while no scheduler ran, so many are taken up at a time, the newest if not all.
MOST_MISSED = 1000
#: What stops everything: no lease any more, or a server that is away.
_AWAY = (LeaseError, RedisError, DatabaseError, BrokerConnectionError)

_INSERT = """
INSERT INTO leases_slot (schedule, due_at, state, message_id, recorded_at)
VALUES (%(schedule)s, %(due_at)s, %(state)s, '', clock_timestamp())
ON CONFLICT (schedule, due_at) DO NOTHING
"""


class Scheduler:
    """Fires the slots of `schedules` while it is the leader."""

    def __init__(
        self, schedules: Sequence[Schedule], *, using: str | None = None, stop: threading.Event | None = None
    ) -> None:
        self.schedules = {schedule.name: schedule for schedule in schedules}
        self.using = using or router.db_for_write(Slot)
        self.stop = stop or threading.Event()

    @property
    def resource(self) -> str:
        """What the leader has leased."""
        return fence.place("scheduler", using=self.using)

    def run(self) -> None:
        """Lead whenever nobody else does, until `stop` is set; no error of a server ends it."""
        while not self.stop.is_set():
            try:
                fence.reopen_if_closed(self.using)
                with hold(self.resource, ttl=_TTL, using=self.using) as lease:
                    logger.info("This process schedules.", extra={"event": "scheduler.elected"})
                    self._lead(lease)
            except LeaseBusy:
                pass
            except _AWAY as error:
                logger.warning("Scheduling stopped and is taken up again: %s", error)
            self.stop.wait(_CANDIDACY_S * random.uniform(0.5, 1.5))  # noqa: S311 - jitter

    def _lead(self, lease: Lease) -> None:
        stand_down_at = boottime() + min(_TERM, conf.MAX_HOLD / 3).total_seconds()
        while boottime() < stand_down_at and not self.stop.is_set():
            lease.check()
            self.look(lease)
            self.stop.wait(_LOOK_EVERY_S)

    def look(self, lease: Lease | None = None) -> int:
        """Take up what is due by the database's clock and enqueue it; return how many messages were enqueued.

        Raises LeaseError, redis.RedisError, django.db.DatabaseError and dramatiq's BrokerConnectionError: servers are
        away, and what was not enqueued is by the next look. Whatever else is wrong with one slot stops no other.
        """
        fence.reopen_if_closed(self.using)
        now = self._now()
        for schedule in self.schedules.values():
            with self._alone(schedule.name):
                self._take_up(schedule, now)
        return self._fire(lease)

    def _take_up(self, schedule: Schedule, now: datetime) -> None:
        # A slot that lies ahead is from a database whose clock was; it must not silence the schedule until then.
        seen = Slot.objects.using(self.using).filter(schedule=schedule.name, due_at__lte=now)
        last = seen.order_by("-due_at").first()
        if last is None:
            # Slots from before the schedule was there were not missed.
            self._insert(schedule, now, Slot.State.FIRST_SEEN)
            return
        if schedule.missed == "all":
            slots = [slot for slot, _ in zip(schedule.between(last.due_at, now), range(MOST_MISSED), strict=False)]
            fired = set(slots)
        else:
            slots = list(deque(schedule.between(last.due_at, now), maxlen=MOST_MISSED))
            fired = set(slots[-1:])
            if schedule.missed == "skip" and slots and now - slots[-1] > conf.SCHEDULE_GRACE:
                fired = set()
        for slot in slots:
            self._insert(schedule, slot, Slot.State.DUE if slot in fired else Slot.State.MISSED)

    def _insert(self, schedule: Schedule, slot: datetime, state: Slot.State) -> None:
        with connections[self.using].cursor() as cursor:
            cursor.execute(_INSERT, {"schedule": schedule.name, "due_at": slot.astimezone(UTC), "state": state.value})
            inserted = bool(cursor.rowcount)
        if inserted and state == Slot.State.MISSED:
            logger.warning(
                "%s missed its slot at %s, which is left out.",
                schedule.name,
                slot,
                extra={"event": "slot.missed", "schedule": schedule.name, "slot": slot.isoformat()},
            )

    def _fire(self, lease: Lease | None) -> int:
        fired = 0
        for slot in Slot.objects.using(self.using).filter(state=Slot.State.DUE).order_by("due_at", "id"):
            schedule = self.schedules.get(slot.schedule)
            if schedule is None:
                continue  # another version of the settings knows it
            with self._alone(schedule.name):
                self._enqueue(schedule, slot, lease)
                fired += 1
        return fired

    def _enqueue(self, schedule: Schedule, slot: Slot, lease: Lease | None) -> None:
        message = schedule.message(slot.due_at)
        if lease is not None:
            lease.check()
        dramatiq.get_broker().enqueue(message)
        Slot.objects.using(self.using).filter(pk=slot.pk, state=Slot.State.DUE).update(
            state=Slot.State.FIRED, message_id=message.message_id
        )
        logger.info(
            "Enqueued %s for %s.",
            schedule.name,
            slot.due_at,
            extra={
                "event": "slot.fired",
                "schedule": schedule.name,
                "slot": slot.due_at.isoformat(),
                "message_id": message.message_id,
            },
        )

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        try:
            yield
        except _AWAY:
            raise
        except dramatiq.ActorNotFound as error:
            logger.error("%s is due, and cannot be enqueued: %s", name, error)
        except Exception:
            logger.exception("A slot of %s could not be fired, and is tried again with the next look.", name)

    def _now(self) -> datetime:
        with connections[self.using].cursor() as cursor:
            cursor.execute("SELECT clock_timestamp()")
            now: datetime = cursor.fetchone()[0]
        return now
