"""Channels of a project's own that do not keep to what `Channel` says."""

import itertools
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from outbox.channels.base import Answer, Channel, Outcome, Parcel


class OddChannel(Channel):
    """Answers as the content says: `answer` is an Answer or anything else."""

    answers: Mapping[str, Any] = {
        "yes": Answer(Outcome.ACCEPTED),
        "none": None,
        "number": Answer(Outcome.ACCEPTED, provider_id=4711),  # type: ignore[arg-type]
        "list": Answer(Outcome.ACCEPTED, refused=["anna"]),  # type: ignore[arg-type]
        "error": Answer(Outcome.REFUSED_TEMPORARILY, ValueError("boom")),  # type: ignore[arg-type]
        "ages": Answer(Outcome.REFUSED_TEMPORARILY, retry_after=timedelta.max),
        "lost": Answer(Outcome.UNKNOWN, "silence after the request", unreachable=True),
    }

    def prepare(self, content: Mapping[str, Any], *, dedupe_key: str) -> Any:
        return dict(content)

    def send(self, parcel: Parcel) -> Answer:
        answer: Answer = self.answers[parcel.payload["answer"]]
        return answer

    @property
    def send_timeout(self) -> timedelta:
        return timedelta(seconds=1)


class LoginFails(OddChannel):
    """Can be made where it is looked at, and in no thread that sends."""

    def __init__(self, name: str) -> None:
        if threading.current_thread().name.startswith("outbox-sender"):
            raise RuntimeError("login failed")
        super().__init__(name)


class HostFails(OddChannel):
    """Says whom an outage would be of only where the content says so."""

    def host(self, payload: Any) -> str:
        host: str = payload["host"]
        return host


class BusyAtFirst(OddChannel):
    """Accepts every message at its second attempt."""

    def send(self, parcel: Parcel) -> Answer:
        return Answer(Outcome.REFUSED_TEMPORARILY if parcel.attempt == 1 else Outcome.ACCEPTED)


class TakesItsTime(OddChannel):
    """Takes most of its `send_timeout`, and keeps how much of the claim was left when each send began."""

    left: list[float] = []  # of all threads

    def send(self, parcel: Parcel) -> Answer:
        self.left.append(parcel.deadline.remaining())
        time.sleep(0.8)
        return super().send(parcel)


class Hangs(OddChannel):
    """Never comes back from its first send, until `goes_on` is set."""

    goes_on = threading.Event()
    sends = itertools.count()

    def send(self, parcel: Parcel) -> Answer:
        if next(self.sends) == 0:
            self.goes_on.wait(15)
        return super().send(parcel)
