"""Checks of jobs that run once, and of schedules."""

from typing import Any

from django.core.checks import CheckMessage, Error, Warning, register

from leases.conf import conf
from leases.jobs.errors import InvalidSchedule


@register("leases")
def once_actors(**kwargs: Any) -> list[CheckMessage]:
    """Check that a job whose key is busy can go back to its queue."""
    try:
        from dramatiq.broker import global_broker
        from dramatiq.middleware import CurrentMessage

        from leases.jobs.sending import once_of
    except ImportError:
        return []
    if global_broker is None or any(isinstance(one, CurrentMessage) for one in global_broker.middleware):
        return []
    names = [actor.actor_name for actor in global_broker.actors.values() if once_of(actor.fn)]
    if not names:
        return []
    return [
        Error(
            f"The broker lacks Dramatiq's CurrentMessage middleware, without which a second message of {names[0]} "
            "fails while the first is being worked on.",
            hint="Call broker.add_middleware(dramatiq.middleware.CurrentMessage()).",
            id="leases.E052",
        )
    ]


@register("leases")
def schedule_entries(**kwargs: Any) -> list[CheckMessage]:
    """Check that LEASES_SCHEDULE can be understood, and that its jobs may be enqueued twice."""
    if not conf.SCHEDULE:
        return []
    try:
        from leases.jobs.schedules import parsed
    except ImportError as error:
        hint = "Type: pip install dramatiq cronsim"
        return [Error(f"LEASES_SCHEDULE needs a package that is missing: {error}.", hint=hint, id="leases.E050")]
    from dramatiq.broker import global_broker

    from leases.jobs.sending import once_of

    messages: list[CheckMessage] = []
    for name, entry in conf.SCHEDULE.items():
        try:
            schedule = parsed(name, entry)
        except InvalidSchedule as error:
            messages.append(
                Error(
                    str(error), hint="See leases.jobs.schedules for what an entry may say.", obj=name, id="leases.E050"
                )
            )
            continue
        actor = global_broker.actors.get(schedule.actor) if global_broker else None
        if actor is not None and once_of(actor.fn) is None:
            messages.append(
                Warning(
                    f"{schedule.actor}, which {name} fires, is not @once: a scheduler that dies in the wrong moment "
                    "has its slot enqueued twice.",
                    hint='Decorate it with @once("...:{slot}") and give it kwargs={"slot": "{slot}"}, or add '
                    '"leases.W051" to SILENCED_SYSTEM_CHECKS if twice is as good as once.',
                    obj=name,
                    id="leases.W051",
                )
            )
    return messages
