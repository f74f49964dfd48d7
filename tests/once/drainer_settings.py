"""Settings for a drainer of jobs under test, which may crash at a step."""

from datetime import timedelta

from tests.faults.settings import *  # noqa: F403

OUTBOX_CLAIM_TTL = timedelta(seconds=60)
OUTBOX_CHANNELS = {"job": {"BACKEND": "outbox.channels.job.JobChannel"}}
