"""The log of steps of one side: one JSON line per event, from the workers and from whoever strikes them."""

import json
import logging
import os
from pathlib import Path

from project.replay import timeline

KEPT = timeline.STARTS | timeline.ENDS | timeline.ISSUED | {timeline.LOST}


class EventFile:
    """Appends events to a file that several processes share; a line is whole or not there."""

    def __init__(self, path: Path, worker: int) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._worker = worker

    def append(self, event: str, *, pid: int, customer: str = "") -> None:
        """Write one event, as of this moment."""
        line = {
            "at": timeline.now(),
            "worker": self._worker,
            "pid": pid,
            "event": event,
            "customer": customer,
        }
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        os.close(self._descriptor)


class StepHandler(logging.Handler):
    """Takes the steps of the protocol, on both sides, from the log lines that tell them anyway."""

    def __init__(self, events: EventFile) -> None:
        super().__init__()
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if event in KEPT:
            customer = getattr(record, "customer", "") or str(getattr(record, "resource", "")).rpartition(":")[2]
            self._events.append(event, pid=os.getpid(), customer=customer)
