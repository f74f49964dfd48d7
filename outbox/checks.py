"""What `manage.py check` finds wrong before a drainer does."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, get_origin, get_type_hints

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DatabaseError, connections, router

from outbox import channels
from outbox.channels.email import EmailChannel
from outbox.conf import Settings, settings
from outbox.errors import InvalidSetting
from outbox.inspection import status


@register("outbox")
def check_settings(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """Names, types and ranges of the app's own settings."""
    hints = get_type_hints(Settings)
    known = {f"OUTBOX_{name}": get_origin(hint) or hint for name, hint in hints.items() if name.isupper()}
    found: list[CheckMessage] = []
    for name in sorted(name for name in dir(django_settings) if name.startswith("OUTBOX_")):
        if name not in known:
            found.append(
                Warning(
                    f"{name} is not a setting of the outbox.",
                    hint=f"Remove it, or correct its name; there are {', '.join(sorted(known))}.",
                    id="outbox.W001",
                )
            )
    for name, kind in known.items():
        value = getattr(settings, name.removeprefix("OUTBOX_"))
        least = timedelta(0) if kind is timedelta else 0
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            found.append(
                Error(
                    f"{name} is {value!r}, not a {kind.__name__}.",
                    hint=f"Set {name} = timedelta(seconds=...)." if kind is timedelta else f"Set a {kind.__name__}.",
                    id="outbox.E001",
                )
            )
        elif kind in (timedelta, int) and value <= least:
            found.append(Error(f"{name} is {value!r}.", hint="Set more than zero.", id="outbox.E001"))
    return found


@register("outbox")
def check_database(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """The statements are PostgreSQL's."""
    from outbox.models import Message

    alias = router.db_for_write(Message)
    if connections[alias].vendor == "postgresql":
        return []
    return [
        Error(
            f"The outbox' messages are on database {alias!r}, which is {connections[alias].vendor}.",
            hint="Keep them in PostgreSQL, in the database of the rows they tell about; a router may say so.",
            id="outbox.E002",
        )
    ]


@register("outbox", Tags.database)
def check_messages(
    app_configs: Sequence[Any] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """No message waits for a channel that is not configured: no drainer would take it."""
    from outbox.models import Message

    alias = router.db_for_write(Message)
    if alias not in (databases or ()) or connections[alias].vendor != "postgresql":
        return []
    try:
        waiting = {channel.channel for channel in status(alias)}
    except DatabaseError:
        return []  # it is away, or migrations have not run
    return [
        Warning(
            f"There are unfinished messages of channel {name!r}, which OUTBOX_CHANNELS does not have.",
            hint=f"Configure {name!r} again, or decide about the messages with 'manage.py outbox'.",
            id="outbox.W007",
        )
        for name in sorted(waiting - set(settings.CHANNELS))
    ]


@register("outbox")
def check_channels(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """Every channel can be made, and a send ends before its claim does."""
    ttls = (settings.CLAIM_TTL, settings.MAX_CLAIM_TTL)
    if not isinstance(settings.CHANNELS, dict) or not all(isinstance(ttl, timedelta) for ttl in ttls):
        return []  # E001 says so
    found: list[CheckMessage] = []
    if settings.CLAIM_TTL > settings.MAX_CLAIM_TTL:
        found.append(
            Error(
                f"OUTBOX_CLAIM_TTL ({settings.CLAIM_TTL}) is longer than OUTBOX_MAX_CLAIM_TTL "
                f"({settings.MAX_CLAIM_TTL}): every claim would be swept at once.",
                hint="Set OUTBOX_MAX_CLAIM_TTL to several times OUTBOX_CLAIM_TTL.",
                id="outbox.E003",
            )
        )
    for name in channels.names():
        try:
            channel = channels.channel(name)
            found += _check_time(name, channel)
        except InvalidSetting as error:
            found.append(Error(str(error), hint=f"Correct OUTBOX_CHANNELS[{name!r}].", id="outbox.E004"))
        except (ImportError, AttributeError, TypeError, ValueError, ArithmeticError) as error:
            found.append(
                Error(
                    f"Channel {name!r} cannot say how long a send takes: {error!r}.",
                    hint=f"Correct OUTBOX_CHANNELS[{name!r}], or for email the settings that begin with EMAIL_.",
                    id="outbox.E004",
                )
            )
    return found


def _check_time(name: str, channel: channels.Channel) -> list[CheckMessage]:
    if isinstance(channel, EmailChannel) and not channel.has_timeout:
        return [
            Error(
                f"Channel {name!r} waits for a silent mail server for ever: EMAIL_TIMEOUT is not set.",
                hint="Set EMAIL_TIMEOUT = 10, or 'timeout' in the OPTIONS of MAILERS.",
                id="outbox.E005",
            )
        ]
    if channel.send_timeout <= timedelta(0):
        return [
            Error(
                f"One send of channel {name!r} may take {channel.send_timeout.total_seconds():g} s: none would end.",
                hint="Set a timeout above zero.",
                id="outbox.E006",
            )
        ]
    if channel.send_timeout * 2 > settings.CLAIM_TTL:
        return [
            Error(
                f"One send of channel {name!r} may take {channel.send_timeout}, and a claim lasts "
                f"{settings.CLAIM_TTL}: messages would be given back unsent, or end in doubt.",
                hint=f"Set OUTBOX_CLAIM_TTL = timedelta(seconds={channel.send_timeout.total_seconds() * 4:.0f}), "
                f"or a shorter timeout.",
                id="outbox.E006",
            )
        ]
    return []
