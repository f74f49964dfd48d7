"""The project's settings with a channel that hands over nothing, and no log line per message."""

from project.settings import *  # noqa: F403
from project.settings import DATABASES

DEBUG = False
# As a drainer may run that talks to PostgreSQL without a pooler: statements are parsed and planned once. The bare loop
# has that from psycopg.
DATABASES["default"]["OPTIONS"] |= {"server_side_binding": True, "prepare_threshold": 5}
OUTBOX_CHANNELS = {
    "noop": {"BACKEND": "benchmarks.outbox.noop.NoopChannel"},
    "email": {"BACKEND": "outbox.channels.email.EmailChannel"},
}
LOGGING = {"version": 1, "disable_existing_loggers": False, "root": {"level": "WARNING"}}
