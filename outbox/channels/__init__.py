"""The ways out: OUTBOX_CHANNELS names them, `channel()` gives one.

Adding a channel is one file with one subclass of `outbox.channels.base.Channel`, and one line in OUTBOX_CHANNELS.
"""

from collections.abc import Mapping
from typing import Any

from django.utils.module_loading import import_string

from outbox.channels.base import Channel
from outbox.conf import settings
from outbox.errors import InvalidSetting, UnknownChannel

__all__ = ["Channel", "channel", "names"]


def names() -> list[str]:
    """The names of all configured channels."""
    return list(settings.CHANNELS)


def channel(name: str) -> Channel:
    """A new instance of the channel `name`; UnknownChannel or InvalidSetting when there is none.

    Each thread that sends has its own, since a channel may keep a connection.
    """
    try:
        config: dict[str, Any] = settings.CHANNELS[name]
    except KeyError:
        raise UnknownChannel(name, names()) from None
    setting = f"OUTBOX_CHANNELS[{name!r}]"
    if not isinstance(name, str):
        raise InvalidSetting(setting, "the name of a channel is text")
    if not isinstance(config, Mapping):
        raise InvalidSetting(setting, f"it is {config!r}, not a mapping of BACKEND, IN_DOUBT, OPTIONS")
    unknown = set(config) - {"BACKEND", "IN_DOUBT", "OPTIONS"}
    if unknown:
        raise InvalidSetting(setting, f"unknown keys {', '.join(sorted(unknown))}; use BACKEND, IN_DOUBT, OPTIONS")
    if config.get("IN_DOUBT") not in (None, "park", "resend"):
        raise InvalidSetting(setting, f'IN_DOUBT is "park" or "resend", not {config["IN_DOUBT"]!r}')
    try:
        backend = import_string(config["BACKEND"])
        made: Channel = backend(name, **config.get("OPTIONS", {}))
    except InvalidSetting:
        raise
    except Exception as error:  # whatever a class does with options that it does not take
        raise InvalidSetting(setting, f"cannot make the channel: {error!r}") from error
    if not isinstance(made, Channel):
        raise InvalidSetting(setting, f"{config['BACKEND']} is no subclass of {Channel.__module__}.Channel")
    if config.get("IN_DOUBT"):
        made.resend_when_in_doubt = config["IN_DOUBT"] == "resend"
    return made
