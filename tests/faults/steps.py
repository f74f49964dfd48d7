"""Stops this process at a step of the protocol, as the environment says.

A step is a log record with an `event`; the product logs them anyway and knows nothing of this module.

FAULT_STEP    the event, for example `lease.registered`
FAULT_NTH     which occurrence in this process, from 1 (default 1)
FAULT_SIGNAL  SIGKILL, or SIGSTOP to freeze until somebody sends SIGCONT
FAULT_MARKER  a file that is made just before the signal: so the test knows, and of several processes one is hit
"""

import logging
import os
import signal
import threading
import time
from pathlib import Path


class FaultHandler(logging.Handler):
    """Sends its own process the signal when the chosen step passes, once."""

    def __init__(self) -> None:
        super().__init__()
        self._step = os.environ.get("FAULT_STEP")
        self._nth = int(os.environ.get("FAULT_NTH", "1"))
        self._signal = signal.Signals[os.environ.get("FAULT_SIGNAL", "SIGKILL")]
        self._marker = os.environ.get("FAULT_MARKER", "")
        self._seen = 0
        self._mutex = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        if self._step is None or getattr(record, "event", None) != self._step:
            return
        with self._mutex:
            self._seen += 1
            if self._seen != self._nth:
                return
        try:
            Path(self._marker).touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), self._signal)
        time.sleep(0.1)  # another thread may be the one that takes the signal; this one must not run ahead of it
