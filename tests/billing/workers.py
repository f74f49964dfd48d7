"""The project's settings with short waits, for worker processes of the tests."""

import os
from datetime import timedelta

from project.settings import *  # noqa: F403
from project.settings import CACHES

LEASES_TTL = timedelta(seconds=2)
CACHES = {**CACHES, "leases": {**CACHES["leases"], "OPTIONS": {"SOCKET_CONNECT_TIMEOUT": 0.3, "SOCKET_TIMEOUT": 0.3}}}
LEASES_RETRY_DELAY = timedelta(milliseconds=200)
BILLING_TAX_TIMEOUT = timedelta(milliseconds=600)
BILLING_TAX_LINES_PER_REQUEST = 5
BILLING_RETRY_DELAY = timedelta(milliseconds=500)
BILLING_ABANDONED_AFTER = timedelta(milliseconds=500)
BILLING_DATABASE_PATIENCE = timedelta(seconds=float(os.environ.get("TEST_DATABASE_PATIENCE", "30")))
BILLING_STALLED_AFTER = timedelta(seconds=2)
