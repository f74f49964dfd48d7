"""A channel whose receiver is a file: one line per message it got, appended by any number of processes."""

import os
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from outbox.channels.base import Answer, Channel, Outcome, Parcel


class RecordingChannel(Channel):
    """Appends the key of each message to the file in OUTBOX_TEST_RECORD, and takes `seconds` over it."""

    def __init__(self, name: str, *, seconds: float = 0.0, key_window_seconds: float = 0.0) -> None:
        super().__init__(name)
        self._seconds = seconds
        self.key_window = timedelta(seconds=key_window_seconds)
        self._file = os.open(os.environ["OUTBOX_TEST_RECORD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def prepare(self, content: Mapping[str, Any], *, dedupe_key: str) -> Any:
        return dict(content)

    def send(self, parcel: Parcel) -> Answer:
        time.sleep(self._seconds)
        parcel.deadline.check()
        os.write(self._file, f"{parcel.dedupe_key}\n".encode())
        return Answer(Outcome.ACCEPTED)

    @property
    def send_timeout(self) -> timedelta:
        return timedelta(seconds=1)

    def close(self) -> None:
        os.close(self._file)
