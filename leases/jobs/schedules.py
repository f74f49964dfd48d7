"""What LEASES_SCHEDULE says: which actor is due when.

    LEASES_SCHEDULE = {
        "monthly-billing": {
            "actor": "start_run",
            "cron": "0 3 1 * *",
            "timezone": "Europe/Berlin",
            "missed": "all",
            "kwargs": {"month": "{slot:%Y-%m}"},
        },
        "watch-quota": {"actor": "watch_quota", "every": timedelta(minutes=5), "missed": "skip"},
    }

`missed` says by name what becomes of slots that no scheduler was there to fire: "latest" fires the newest of them (the
default), "all" fires each, "skip" fires none. Texts in `args` and `kwargs`, also in lists and dicts there, are
formatted with `slot`, the moment that was due, in the schedule's time zone. Dramatiq's encoder, which makes JSON unless
you set another, must take what comes of it. A cron expression is read as Debian's cron does, also when clocks change.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo

import dramatiq
from cronsim import CronSim, CronSimError

from leases.conf import conf
from leases.jobs.errors import InvalidSchedule

Missed = Literal["latest", "all", "skip"]
_KEYS = {"actor", "cron", "every", "timezone", "missed", "args", "kwargs"}
_EPOCH = datetime(2000, 1, 3, tzinfo=UTC)  # a Monday, so that weeks and their parts begin where people expect


@dataclass(frozen=True, slots=True)
class Schedule:
    """One entry of LEASES_SCHEDULE."""

    name: str
    actor: str
    cron: str = ""
    every: timedelta | None = None
    timezone: ZoneInfo = field(default_factory=lambda: ZoneInfo("UTC"))
    missed: Missed = "latest"
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the slots later than `moment`, in order and without end."""
        if self.every is not None:
            slot = _EPOCH + ((moment - _EPOCH) // self.every + 1) * self.every
            while True:
                yield slot.astimezone(self.timezone)
                slot += self.every
        yield from CronSim(self.cron, moment.astimezone(self.timezone))

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Yield the slots later than `after`, up to and including `until`."""
        return takewhile(lambda slot: slot <= until, self.after(after))

    def message(self, slot: datetime) -> "dramatiq.Message[Any]":
        """Return a new broker message for the slot; raises dramatiq.ActorNotFound."""
        local = slot.astimezone(self.timezone)
        actor = dramatiq.get_broker().get_actor(self.actor)
        return actor.message_with_options(
            args=_filled(self.args, local), kwargs=_filled(self.kwargs, local), schedule=self.name
        )


def schedules() -> list[Schedule]:
    """Return every entry of LEASES_SCHEDULE; raises InvalidSchedule at the first that cannot be understood."""
    return [parsed(name, entry) for name, entry in conf.SCHEDULE.items()]


def parsed(name: str, entry: Mapping[str, Any]) -> Schedule:
    """Return the schedule that an entry describes, or raise InvalidSchedule."""
    if not isinstance(name, str) or not 0 < len(name) <= 100:
        raise InvalidSchedule(name, reason="a name has 1 to 100 characters")
    if not isinstance(entry, Mapping):
        raise InvalidSchedule(name, reason=f"it is a dict, not {entry!r:.50}")
    unknown = set(entry) - _KEYS
    if unknown:
        told = ", ".join(sorted(map(str, unknown)))
        raise InvalidSchedule(name, reason=f"unknown: {told}; known: {', '.join(sorted(_KEYS))}")
    if not isinstance(entry.get("actor"), str):
        raise InvalidSchedule(name, reason="'actor' must name an actor")
    if ("cron" in entry) == ("every" in entry):
        raise InvalidSchedule(name, reason="give either 'cron' or 'every'")
    if not isinstance(entry.get("cron", ""), str):
        raise InvalidSchedule(name, reason="'cron' is a text such as '0 3 1 * *'")
    every = entry.get("every")
    if "every" in entry and (not isinstance(every, timedelta) or every < timedelta(seconds=1)):
        raise InvalidSchedule(name, reason="'every' is a timedelta of at least a second")
    if entry.get("missed", "latest") not in get_args(Missed):
        raise InvalidSchedule(name, reason=f"'missed' is one of {', '.join(get_args(Missed))}")
    if not isinstance(entry.get("args", ()), list | tuple):
        raise InvalidSchedule(name, reason="'args' is a list or a tuple")
    kwargs = entry.get("kwargs", {})
    if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
        raise InvalidSchedule(name, reason="'kwargs' is a dict whose keys are texts")
    try:
        timezone = ZoneInfo(entry.get("timezone", "UTC"))
    except (KeyError, ValueError, TypeError, AttributeError, OSError) as error:
        raise InvalidSchedule(name, reason=f"there is no time zone {entry.get('timezone')!r}") from error
    schedule = Schedule(
        name=name,
        actor=entry["actor"],
        cron=entry.get("cron", ""),
        every=every,
        timezone=timezone,
        missed=entry.get("missed", "latest"),
        args=tuple(entry.get("args", ())),
        kwargs=kwargs,
    )
    try:
        slot = next(schedule.after(datetime.now(UTC)))
    except CronSimError as error:
        raise InvalidSchedule(name, reason=f"cron {schedule.cron!r}: {error}") from error
    except StopIteration:
        raise InvalidSchedule(name, reason=f"cron {schedule.cron!r} is never due") from None
    _check_arguments(schedule, slot)
    return schedule


def _check_arguments(schedule: Schedule, slot: datetime) -> None:
    try:
        filled = (_filled(schedule.args, slot), _filled(schedule.kwargs, slot))
    except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
        reason = f"its arguments can be formatted with {{slot}} only ({error!r})"
        raise InvalidSchedule(schedule.name, reason=reason) from error
    message: dramatiq.Message[Any] = dramatiq.Message("", schedule.actor, *filled, options={})
    try:
        message.encode()
    except Exception as error:  # whatever an encoder raises
        raise InvalidSchedule(schedule.name, reason=f"no message can carry its arguments ({error!r})") from error


def _filled(value: Any, slot: datetime) -> Any:
    if isinstance(value, str):
        return value.format(slot=slot)
    if isinstance(value, list | tuple):
        return type(value)([_filled(one, slot) for one in value])
    if isinstance(value, Mapping):
        return {key: _filled(one, slot) for key, one in value.items()}
    return value
