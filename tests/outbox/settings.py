"""Settings for drainers under test: short claims, crashes and freezes at a step, a channel that records, a wrong clock.

OUTBOX_TEST_CLOCK_SECONDS   how far this process' wall clock is off
OUTBOX_TEST_CLAIM_SECONDS   how long its claims last
OUTBOX_TEST_PREPARED        statements are prepared by the server
"""

import os
import time
from datetime import timedelta

from tests.faults.settings import *  # noqa: F403
from tests.faults.settings import DATABASES

OUTBOX_CLAIM_TTL = timedelta(seconds=float(os.environ.get("OUTBOX_TEST_CLAIM_SECONDS", "3")))
OUTBOX_POLL_INTERVAL = timedelta(milliseconds=100)
OUTBOX_CHANNELS = {
    "email": {"BACKEND": "outbox.channels.email.EmailChannel"},
    "record": {
        "BACKEND": "tests.outbox.recording.RecordingChannel",
        "OPTIONS": {"seconds": float(os.environ.get("OUTBOX_TEST_SEND_SECONDS", "0"))},
    },
}
if "OUTBOX_TEST_RECORD" not in os.environ:
    del OUTBOX_CHANNELS["record"]

if "OUTBOX_TEST_PREPARED" in os.environ:
    DATABASES["default"]["OPTIONS"] |= {"server_side_binding": True, "prepare_threshold": 2}

if shift := float(os.environ.get("OUTBOX_TEST_CLOCK_SECONDS", "0")):
    from django.utils import timezone

    right_time, right_now = time.time, timezone.now
    time.time = lambda: right_time() + shift
    timezone.now = lambda: right_now() + timedelta(seconds=shift)
