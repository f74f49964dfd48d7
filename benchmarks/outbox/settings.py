"""The project's settings with a channel that hands over nothing, and no log line per message."""

from project.settings import *  # noqa: F403

DEBUG = False
OUTBOX_CHANNELS = {
    "noop": {"BACKEND": "benchmarks.outbox.noop.NoopChannel"},
    "email": {"BACKEND": "outbox.channels.email.EmailChannel"},
}
LOGGING = {"version": 1, "disable_existing_loggers": False, "root": {"level": "WARNING"}}
