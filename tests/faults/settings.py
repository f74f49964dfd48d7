"""The project's settings with short leases, and a handler that crashes or freezes the process at a step."""

from datetime import timedelta

from project.settings import *  # noqa: F403

LEASES_TTL = BILLING_LEASE_TTL = timedelta(seconds=2)
OUTBOX_CLAIM_TTL = timedelta(seconds=3)
EMAIL_TIMEOUT = 1
BILLING_TAX_TIMEOUT = timedelta(milliseconds=500)
BILLING_TAX_LINES_PER_REQUEST = 2

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {
        "fault": {"class": "tests.faults.steps.FaultHandler"},
        "stderr": {"class": "logging.StreamHandler"},
    },
    "root": {"handlers": ["stderr"], "level": "INFO"},
    "loggers": {
        name: {"handlers": ["fault"], "level": "DEBUG"}
        for name in ("leases", "outbox", "billing", "project.replay", "tests.faults")
    },
}
