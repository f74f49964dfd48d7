"""The webhook channel: signed POSTs to known receivers, as Standard Webhooks (standardwebhooks.com) says."""

import base64
import binascii
import contextlib
import email.utils
import hashlib
import hmac
import http.client
import json
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from outbox.channels.addresses import ForbiddenAddress, Network, networks, resolve
from outbox.channels.base import Answer, Channel, Deadline, Outcome, Parcel
from outbox.channels.cutting import Cutter
from outbox.errors import InvalidContent, InvalidSetting, PermanentFailure

# What no repetition of the same request can cure.
_REFUSED_FOR_GOOD = {400, 410, 413, 415, 422}
# A gateway says that it does not know what became of the request behind it.
_UNKNOWN = {502, 504}
_MOST_OF_AN_ANSWER = 1000


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where to POST, and the secrets to sign with, newest first: during a rotation all of them sign."""

    url: str
    secrets: Sequence[bytes]

    @property
    def host(self) -> str:
        """Whom an outage would be of."""
        return urlsplit(self.url).netloc


class WebhookChannel(Channel):
    """POSTs a message's JSON to a receiver, with the same webhook-id on every attempt, until it says 2xx.

    Content: receiver (an id of `receivers`), type, data. OPTIONS:
    receivers: {id: {"url": "https://…", "secrets": ["whsec_…", …]}};
    timeout_seconds: how long one request may take in all, default 15;
    allow_private: networks beyond the public ones that may be reached, as in ["10.1.2.0/24"]; also without TLS;
    key_window_hours: how long receivers recognise a webhook-id they have seen, default 72.
    """

    def __init__(
        self,
        name: str,
        *,
        receivers: Mapping[str, Mapping[str, Any]],
        timeout_seconds: float = 15.0,
        allow_private: Sequence[str] = (),
        key_window_hours: float = 72.0,
    ) -> None:
        super().__init__(name)
        if not isinstance(receivers, Mapping):
            raise InvalidSetting(f"receivers of channel {name!r}", f"they are {receivers!r}, not a mapping")
        if not timeout_seconds > 0:
            raise InvalidSetting(f"timeout_seconds of channel {name!r}", f"it is {timeout_seconds!r}, not above zero")
        self._timeout = timeout_seconds
        self.key_window = timedelta(hours=key_window_hours)
        try:
            self._allowed: list[Network] = networks(allow_private)
        except ValueError as error:
            raise InvalidSetting(f"allow_private of channel {name!r}", str(error)) from error
        self._receivers = {id: _receiver(name, id, config) for id, config in receivers.items()}

    def prepare(self, content: Mapping[str, Any], *, dedupe_key: str) -> Any:
        """The body and the webhook-id, which stay the same on every attempt."""
        if set(content) != {"receiver", "type", "data"}:
            raise InvalidContent(self.name, f"it has the fields {sorted(content)}, not receiver, type and data")
        if content["receiver"] not in list(self._receivers):  # a list, since it may be anything
            raise InvalidContent(self.name, f"there is no receiver {content['receiver']!r}")
        body = {"type": content["type"], "timestamp": datetime.now(UTC).isoformat(), "data": content["data"]}
        return {
            "receiver": content["receiver"],
            "id": "msg_" + hashlib.sha256(f"{self.name}:{dedupe_key}".encode()).hexdigest()[:40],
            "body": json.dumps(body, separators=(",", ":"), ensure_ascii=False),
        }

    def host(self, payload: Any) -> str:
        """The receiver's host."""
        id = payload.get("receiver") if isinstance(payload, dict) else None
        return self._receivers[id].host if isinstance(id, str) and id in self._receivers else ""

    @property
    def send_timeout(self) -> timedelta:
        """Name resolution, connection, request and answer."""
        return timedelta(seconds=self._timeout)

    def send(self, parcel: Parcel) -> Answer:
        """One POST. It is not repeated here, and no redirect is followed."""
        try:
            receiver = self._receivers[parcel.payload["receiver"]]
            body = parcel.payload["body"].encode()
            headers = sign(receiver.secrets, parcel.payload["id"], int(time.time()), body)
        except (LookupError, TypeError, AttributeError) as error:
            raise PermanentFailure(f"its receiver or its body is gone: {error!r}") from error
        with contextlib.ExitStack() as until_then:
            try:
                cutter = until_then.enter_context(Cutter(self._timeout))
                connection = self._connect(receiver.url, cutter)
            except ForbiddenAddress as error:
                raise PermanentFailure(str(error)) from error
            except (OSError, RuntimeError) as error:  # RuntimeError: there is no thread to be had
                return Answer(Outcome.NOT_HANDED_OVER, f"no connection to {receiver.host}: {error}", unreachable=True)
            try:
                parcel.deadline.check()
                parts = urlsplit(receiver.url)
                path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
                connection.request("POST", path, body, headers)
                response = connection.getresponse()
                words = f"{response.status} {_start_of(response)}".strip()
                return _answer(response, words)
            except (OSError, http.client.HTTPException) as error:
                return Answer(Outcome.UNKNOWN, f"{receiver.host} did not answer: {type(error).__name__}: {error}")
            finally:
                connection.close()

    def _connect(self, url: str, cutter: Cutter) -> http.client.HTTPConnection:
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        host, port = parts.hostname or "", parts.port or (443 if tls else 80)
        ends_at = Deadline.after(self._timeout)
        found = resolve(host, port, self._allowed, public=tls, seconds=self._timeout)
        kind = http.client.HTTPSConnection if tls else http.client.HTTPConnection
        connection = kind(host, port, timeout=self._timeout)
        connected = _connected(found, ends_at)
        connected.settimeout(self._timeout)
        cutter.watch(connected)
        try:
            if tls:
                connected = ssl.create_default_context().wrap_socket(connected, server_hostname=host)
        except OSError:
            connected.close()
            raise
        connection.sock = connected
        return connection


def _connected(addresses: Sequence[tuple[str, int]], ends_at: Deadline) -> socket.socket:
    """A connection to the first address that takes one; each may use its share of the time that is left."""
    for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
        try:
            return socket.create_connection(address, max(0.01, ends_at.remaining() / left))
        except OSError as error:
            failure = error
    raise failure


def sign(secrets: Sequence[bytes], id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of Standard Webhooks: HMAC-SHA256 over id, timestamp and body, with every secret."""
    signed = b"%s.%d.%s" % (id.encode(), timestamp, body)
    signatures = [base64.b64encode(hmac.digest(secret, signed, "sha256")).decode() for secret in secrets]
    return {
        "content-type": "application/json",
        "user-agent": "outbox",
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def _answer(response: http.client.HTTPResponse, words: str) -> Answer:
    status = response.status
    if status // 100 == 2:
        return Answer(Outcome.ACCEPTED, words, provider_id=words)
    if status // 100 == 1:
        return Answer(Outcome.UNKNOWN, f"{words} (no final answer)")
    if status // 100 == 3:
        words = f"{words} (redirects to {response.getheader('location')}, which is not followed)"
    if status in _REFUSED_FOR_GOOD:
        return Answer(Outcome.REFUSED_PERMANENTLY, words)
    outcome = Outcome.UNKNOWN if status in _UNKNOWN else Outcome.REFUSED_TEMPORARILY
    return Answer(outcome, words, retry_after=retry_after(response.getheader("retry-after")))


def retry_after(value: str | None) -> timedelta | None:
    """Seconds or a date (RFC 9110 10.2.3); at most a day."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (email.utils.parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError, OverflowError):
            return None
    return timedelta(seconds=min(max(seconds, 0.0), 86_400.0)) if seconds == seconds else None


def _start_of(response: http.client.HTTPResponse) -> str:
    """The answer's text as far as a person wants to see it; what the status says stands without it."""
    try:
        return response.read(_MOST_OF_AN_ANSWER).decode("utf-8", "replace")
    except (OSError, ValueError, http.client.HTTPException):  # ValueError: a chunk of negative size
        return ""


def _can_be_sent_to(url: object) -> bool:
    """Whether a request to this URL can be made as it is written."""
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")  # what the resolver does: no label is empty or longer than 63
    except ValueError:
        return False
    return parts.scheme in ("https", "http") and bool(host) and port != 0 and "@" not in parts.netloc


def _receiver(channel: str, id: str, config: Mapping[str, Any]) -> Receiver:
    setting = f"receiver {id!r} of channel {channel!r}"
    if not isinstance(config, Mapping):
        raise InvalidSetting(setting, f"it is {config!r}, not a mapping of url and secrets")
    if not _can_be_sent_to(config.get("url")):
        reason = f"its url is {config.get('url')!r}, not https://host/path in ASCII (xn--, %20)"
        raise InvalidSetting(setting, reason)
    secrets = config.get("secrets") or []
    if not secrets or isinstance(secrets, str):
        raise InvalidSetting(setting, "it has no list of secrets")
    try:
        keys = [base64.b64decode(secret.removeprefix("whsec_"), validate=True) for secret in secrets]
    except (AttributeError, binascii.Error) as error:
        raise InvalidSetting(setting, "a secret is not whsec_ and base64") from error
    if any(len(key) < 24 for key in keys):
        raise InvalidSetting(setting, "a secret has less than 24 bytes")
    return Receiver(config["url"], keys)
