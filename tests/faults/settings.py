"""The project's settings with short leases, and a handler that crashes or freezes the process at a step."""

from datetime import timedelta
from typing import Any

from project.settings import *  # noqa: F403
from project.settings import LOGGING

OUTBOX_CLAIM_TTL = timedelta(seconds=3)
EMAIL_TIMEOUT = 1
BILLING_TAX_TIMEOUT = timedelta(milliseconds=500)
BILLING_TAX_LINES_PER_REQUEST = 2
BILLING_ABANDONED_AFTER = timedelta(seconds=1)
BILLING_STALLED_AFTER = timedelta(seconds=3)
LEASES_RETRY_DELAY = timedelta(seconds=1)

logging_settings: Any = LOGGING
logging_settings["handlers"]["fault"] = {"class": "tests.faults.steps.FaultHandler"}
for name in ("leases", "outbox", "billing", "project.replay", "tests.faults"):
    logging_settings["loggers"][name] = {"handlers": ["fault"], "level": "DEBUG"}
