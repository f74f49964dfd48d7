"""The tests' settings for a worker or drainer of jobs that may crash or freeze at a step (see tests.faults.steps)."""

from typing import Any

from project.settings import LOGGING
from tests.settings import *  # noqa: F403

OUTBOX_CHANNELS = {"job": {"BACKEND": "outbox.channels.job.JobChannel"}}

logging_settings: Any = LOGGING
logging_settings["handlers"]["fault"] = {"class": "tests.faults.steps.FaultHandler"}
for name in ("leases", "outbox"):
    logging_settings["loggers"][name] = {"handlers": ["fault"], "level": "DEBUG"}
