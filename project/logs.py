"""What every log line of a job carries, and the two forms a line can take.

Wherever a line comes from - this code, Dramatiq, Redis' client -, `JobFilter` puts on it what the line's thread is
working on: the lease's `resource` and `token`, the broker message's `message_id`, and the billing `run`.
"""

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

JOB_FIELDS = ("resource", "token", "message_id", "run")

_job: ContextVar[dict[str, object]] = ContextVar("job", default={})  # noqa: B039 - only ever replaced

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# What Django puts on lines about requests beside the message, which says it: a socket or a request, and the time again.
_OF_DJANGO = frozenset({"request", "server_time"})
_LEFT_OUT = _STANDARD | _OF_DJANGO | frozenset(JOB_FIELDS)


def enter_job(**fields: object) -> None:
    """Put `fields` (some of `JOB_FIELDS`) on every line that this thread logs from now on, instead of those before."""
    _job.set(fields)


def leave_job() -> None:
    """Put nothing on this thread's lines any more."""
    _job.set({})


class JobFilter(logging.Filter):
    """Puts the job's fields on each record; what the line itself says wins."""

    def filter(self, record: logging.LogRecord) -> bool:
        known = {**_current_lease(), **_job.get()}
        for name in JOB_FIELDS:
            if getattr(record, name, None) is None:
                setattr(record, name, known.get(name))
        return True


class PlainFormatter(logging.Formatter):
    """One line for people: time, level, logger, what happened, then every field that has a value."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        line = f"{when} {record.levelname:<7} {record.name}: {record.getMessage()}"
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        if fields:
            line += f"  [{fields}]"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line for machines: time (UTC), level, logger, message, process, and every field."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
            "thread": record.threadName,
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return what the line carries beyond the standard attributes: the event first, the job's last, none empty."""
    extra = {name: value for name, value in vars(record).items() if name not in _LEFT_OUT}
    extra = {"event": extra.pop("event", None), **extra}
    job_fields = {name: getattr(record, name, None) for name in JOB_FIELDS}
    return {name: value for name, value in {**extra, **job_fields}.items() if value not in (None, "")}


def _current_lease() -> dict[str, object]:
    from leases import current_lease

    lease = current_lease()
    return {"resource": lease.resource, "token": lease.token} if lease else {}
