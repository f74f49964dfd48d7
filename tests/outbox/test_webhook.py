"""Webhooks against a real HTTP server: signatures, repetitions with the same id, and addresses nobody may reach."""

import base64
import hmac
import ipaddress
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

import outbox
from outbox import channels, errors
from outbox.channels import cutting
from outbox.channels.addresses import ForbiddenAddress, is_public, networks, resolve
from outbox.channels.webhook import retry_after
from outbox.drain import Report
from outbox.models import Message, State

from .http_server import Receiver

Drain = Callable[..., Report]
SECRETS = [b"n" * 32, b"o" * 32]
EVENT = {"receiver": "crm", "type": "invoice.issued", "data": {"number": "A-1", "name": "Grüße"}}


def configure(settings: Any, url: str, secrets: list[bytes] = SECRETS, **options: Any) -> None:
    receiver = {"url": url, "secrets": ["whsec_" + base64.b64encode(secret).decode() for secret in secrets]}
    options = {"receivers": {"crm": receiver}, "timeout_seconds": 1, "allow_private": ["127.0.0.0/8"], **options}
    settings.OUTBOX_CHANNELS = {"hook": {"BACKEND": "outbox.channels.webhook.WebhookChannel", "OPTIONS": options}}


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    server = Receiver()
    configure(settings, server.url)
    yield server
    server.close()


def publish(key: str = "k") -> Message:
    with transaction.atomic():
        return outbox.publish("hook", EVENT, dedupe_key=key)


def make_due() -> None:
    Message.objects.filter(state=State.PENDING).update(available_at=timezone.now() - timedelta(seconds=1))


@pytest.mark.django_db(transaction=True)
def test_request_is_signed_with_every_secret_as_standard_webhooks_say(receiver: Receiver, drain: Drain) -> None:
    published: Any = publish().payload
    assert drain(channel="hook").tally["sent"] == 1
    (request,) = receiver.received
    assert request.path == "/hook?x=1"
    body = json.loads(request.body)
    assert (body["type"], body["data"]) == (EVENT["type"], EVENT["data"])
    headers = request.headers
    assert headers["content-type"] == "application/json"
    assert headers["webhook-id"] == published["id"]
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + request.body
    expected = [base64.b64encode(hmac.digest(secret, signed, "sha256")).decode() for secret in SECRETS]
    assert headers["webhook-signature"] == " ".join(f"v1,{signature}" for signature in expected)


FATES = {
    200: State.SENT,
    204: State.SENT,
    302: State.PENDING,
    400: State.DEAD,
    404: State.PENDING,
    410: State.DEAD,
    429: State.PENDING,
    500: State.PENDING,
    502: State.PENDING,
    503: State.PENDING,
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("status", FATES)
def test_each_status_has_its_fate(status: int, receiver: Receiver, drain: Drain) -> None:
    receiver.status, receiver.text = status, b"words"
    receiver.headers = {"Location": "http://169.254.169.254/"}
    publish()
    drain(channel="hook")
    message = Message.objects.get()
    assert message.state == FATES[status]
    assert len(receiver.received) == 1
    if message.state != State.SENT:
        assert message.last_error.startswith(str(status))
    # Only a gateway that does not know leaves a doubt behind; the repetition is recognised by its id.
    assert (message.resend_until is not None) == (status == 502)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("mode", ["drop", "drip"])
def test_unknown_outcome_is_repeated_with_the_same_id_and_bytes(mode: str, receiver: Receiver, drain: Drain) -> None:
    receiver.mode = mode
    publish()
    drain(channel="hook")
    message = Message.objects.get()
    assert message.state == State.PENDING
    assert message.resend_until is not None
    receiver.mode = "answer"
    make_due()
    drain(channel="hook")
    assert Message.objects.get().state == State.SENT
    first, second = receiver.received
    assert first.body == second.body
    assert first.headers["webhook-id"] == second.headers["webhook-id"]


@pytest.mark.django_db(transaction=True)
def test_unknown_outcome_is_in_doubt_once_the_receiver_forgets_the_id(
    receiver: Receiver, drain: Drain, settings: Any
) -> None:
    configure(settings, receiver.url, key_window_hours=1)
    receiver.mode = "drop"
    publish()
    drain(channel="hook")
    Message.objects.update(resend_until=timezone.now() - timedelta(seconds=1))
    make_due()
    receiver.mode = "answer"
    drain(channel="hook")
    assert Message.objects.get().state == State.IN_DOUBT
    assert len(receiver.received) == 1


@pytest.mark.django_db(transaction=True)
def test_message_with_a_doubt_behind_it_never_becomes_dead(receiver: Receiver, drain: Drain, settings: Any) -> None:
    settings.OUTBOX_MAX_ATTEMPTS = 2
    receiver.mode = "drop"
    publish()
    drain(channel="hook")
    receiver.mode, receiver.status = "answer", 500
    make_due()
    drain(channel="hook")
    assert Message.objects.get().state == State.IN_DOUBT
    with transaction.atomic():
        assert not outbox.cancel("k")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("missing", ["cutter", "look-up"])
def test_no_thread_to_be_had_leaves_no_doubt(missing: str, receiver: Receiver, drain: Drain, monkeypatch: Any) -> None:
    start = threading.Thread.start

    def start_others(thread: threading.Thread) -> None:
        if thread.name == missing:
            raise RuntimeError("can't start new thread")
        start(thread)

    publish()
    monkeypatch.setattr(cutting, "_alarm", cutting._Alarm())  # whose thread does not run yet
    monkeypatch.setattr(threading.Thread, "start", start_others)
    drain(channel="hook")
    assert Message.objects.values_list("state", "attempts", "resend_until").get() == (State.PENDING, 0, None)
    assert not receiver.received


@pytest.mark.django_db(transaction=True)
def test_retry_after_is_honoured(receiver: Receiver, drain: Drain) -> None:
    receiver.status, receiver.headers = 503, {"Retry-After": "900"}
    publish()
    drain(channel="hook")
    wait = Message.objects.get().available_at - timezone.now()
    assert timedelta(seconds=890) < wait < timedelta(seconds=3600)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("status", [101, 102, 103, 199])
def test_answer_that_is_not_final_leaves_the_outcome_unknown(status: int, receiver: Receiver, drain: Drain) -> None:
    receiver.status = status
    publish()
    drain(channel="hook")
    message: Any = Message.objects.get()
    assert (message.state, message.history[0]["outcome"]) == (State.PENDING, "unknown")
    assert message.resend_until is not None


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        ("120", 120, 120),
        ("-5", 0, 0),
        ("1e308", 86_400, 86_400),
        ("inf", 86_400, 86_400),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400, 86_400),
    ],
)
def test_retry_after_is_between_nothing_and_a_day(value: str, least: int, most: int) -> None:
    found = retry_after(value)
    assert found is not None
    assert least <= found.total_seconds() <= most


@pytest.mark.parametrize(
    "value",
    [
        "nan",
        "soon",
        "Wed, 21 Oct 99999999999 07:28:00 GMT",
        "Wed, 21 Oct 2026 07:28:00 +9999999999",
        "Wed, 99999999999999999999 Oct 2026 07:28:00 GMT",
        "Wed, 21 Oct 2026 07:28:00 -0000",
    ],
)
def test_retry_after_that_says_nothing_is_passed_by(value: str) -> None:
    assert retry_after(value) is None


@pytest.mark.django_db(transaction=True)
def test_text_of_an_answer_with_a_chunk_of_negative_size_leaves_its_status(receiver: Receiver, drain: Drain) -> None:
    receiver.mode = "negative_chunk"
    publish()
    drain(channel="hook")
    assert Message.objects.get().state == State.SENT


@pytest.mark.django_db(transaction=True)
def test_receiver_with_several_addresses_is_reached_at_the_next_one(
    receiver: Receiver, drain: Drain, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = socket.getaddrinfo

    def two_addresses(host: str, port: int, *args: Any, **more: Any) -> list[Any]:
        """Nobody listens at the first one."""
        if host != "crm.test":
            return look_up(host, port, *args, **more)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in ("127.0.0.2", "127.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", two_addresses)
    configure(settings, receiver.url.replace("127.0.0.1", "crm.test"))
    publish()
    drain(channel="hook")
    assert Message.objects.get().state == State.SENT
    assert len(receiver.received) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("url", "allowed"),
    [("http://127.0.0.1:9/", []), ("https://127.0.0.1:9/", []), ("http://localhost:9/", ["10.0.0.0/8"])],
)
def test_private_address_is_never_reached(url: str, allowed: list[str], drain: Drain, settings: Any) -> None:
    configure(settings, url, allow_private=allowed)
    publish()
    drain(channel="hook")
    message = Message.objects.get()
    assert message.state == State.DEAD
    assert "not in the networks of allow_private" in message.last_error


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("10.0.0.1", False),
        ("127.0.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fd00::1", False),
        ("fe80::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        # NAT64, 6to4, Teredo, and IPv4-compatible: an IPv4 address in disguise
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("64:ff9b:1::a00:1", False),
        ("2002:7f00:1::", False),
        ("2002:a9fe:a9fe::1", False),
        ("2001:0:808:808::1", False),
        ("::7f00:1", False),
        ("::808:808", False),
        ("::ffff:a9fe:a9fe", False),
        ("::ffff:0:7f00:1", False),
        # what is not global unicast: site-local, unspecified, multicast, discard-only, documentation, ORCHID, SRv6,
        # never allocated
        ("fec0::1", False),
        ("feff::1", False),
        ("::", False),
        ("ff02::1", False),
        ("ff0e::1", False),
        ("100::1", False),
        ("2001:db8::1", False),
        ("3fff::1", False),
        ("2001:10::1", False),
        ("5f00::1", False),
        ("200::1", False),
        ("4000::1", False),
        ("fe00::1", False),
        ("255.255.255.255", False),
        ("240.0.0.1", False),
        ("239.1.2.3", False),
        ("192.0.0.1", False),
        ("192.0.2.1", False),
        ("192.88.99.1", False),
        ("198.18.0.1", False),
        ("172.31.255.255", False),
        ("172.32.0.1", True),
        ("2001:4860:4860::8888", True),
        ("2a00:1450:4001:82a::200e", True),
    ],
)
def test_what_counts_as_public(address: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) == public


def test_without_tls_only_the_allow_list_is_reached() -> None:
    with pytest.raises(ForbiddenAddress, match="without TLS"):
        resolve("8.8.8.8", 80, [], public=False)
    assert resolve("8.8.8.8", 80, []) == [("8.8.8.8", 80)]
    assert resolve("127.0.0.1", 80, networks(["127.0.0.0/8"]), public=False) == [("127.0.0.1", 80)]


@pytest.mark.django_db(transaction=True)
def test_receiver_that_is_gone_from_the_settings_is_a_permanent_failure(
    receiver: Receiver, drain: Drain, settings: Any
) -> None:
    publish()
    Message.objects.update(payload={"receiver": "gone", "id": "msg_1", "body": "{}"})
    drain(channel="hook")
    assert Message.objects.get().state == State.DEAD


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"receivers": {"a": {"url": "ftp://x/", "secrets": ["whsec_" + "A" * 44]}}}, "not https"),
        ({"receivers": {"a": {"url": "https://user@x/", "secrets": ["whsec_" + "A" * 44]}}}, "not https"),
        ({"receivers": {"a": {"url": "https://x:99999/", "secrets": ["whsec_" + "A" * 44]}}}, "not https"),
        ({"receivers": {"a": {"url": "https://:pw@x/", "secrets": ["whsec_" + "A" * 44]}}}, "not https"),
        ({"receivers": {"a": {"url": "https://x/häken", "secrets": ["whsec_" + "A" * 44]}}}, "not https"),
        ({"receivers": {"a": {"url": "https://x/?q=ü", "secrets": ["whsec_" + "A" * 44]}}}, "not https"),
        ({"receivers": {"a": {"url": "https://straße.de/", "secrets": ["whsec_" + "A" * 44]}}}, "not https"),
        ({"receivers": {"a": {"url": "https://x/a b", "secrets": ["whsec_" + "A" * 44]}}}, "not https"),
        ({"receivers": {"a": {"url": "https://x/a\tb", "secrets": ["whsec_" + "A" * 44]}}}, "not https"),
        ({"receivers": {"a": {"url": "https://a..b/", "secrets": ["whsec_" + "A" * 44]}}}, "not https"),
        ({"receivers": {"a": {"url": f"https://{'x' * 64}.de/", "secrets": ["whsec_" + "A" * 44]}}}, "not https"),
        ({"receivers": {"a": {"url": "https://[::1", "secrets": ["whsec_" + "A" * 44]}}}, "not https"),
        ({"receivers": {"a": {"url": "https://x/", "secrets": []}}}, "no list of secrets"),
        ({"receivers": {"a": {"url": "https://x/", "secrets": ["whsec_!"]}}}, "base64"),
        ({"receivers": {"a": {"url": "https://x/", "secrets": ["whsec_AAAA"]}}}, "less than 24 bytes"),
        ({"receivers": {}, "allow_private": ["here"]}, "allow_private"),
        ({"receivers": {}, "colour": "red"}, "cannot make the channel"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], reason: str, settings: Any) -> None:
    settings.OUTBOX_CHANNELS = {"hook": {"BACKEND": "outbox.channels.webhook.WebhookChannel", "OPTIONS": options}}
    with pytest.raises(errors.InvalidSetting, match=reason):
        channels.channel("hook")


@pytest.mark.parametrize(
    "content",
    [
        {"receiver": "crm"},
        {"receiver": "x", "type": "t", "data": 1},
        {"receiver": ["x"], "type": "t", "data": 1},
    ],
)
def test_content_that_cannot_be_sent_is_refused(content: dict[str, Any], settings: Any) -> None:
    configure(settings, "https://example.org/")
    with pytest.raises(errors.InvalidContent):
        channels.channel("hook").prepare(content, dedupe_key="k")


@pytest.mark.django_db(transaction=True)
def test_text_of_an_answer_that_drips_is_cut_off_and_the_status_stands(receiver: Receiver, drain: Drain) -> None:
    receiver.mode = "drip_text"
    publish()
    began = time.monotonic()
    drain(channel="hook")
    assert time.monotonic() - began < 20  # the text would take 80 s
    assert Message.objects.get().state == State.SENT


@pytest.mark.django_db(transaction=True)
def test_poison_whose_receiver_is_no_name_stops_nobody(receiver: Receiver, drain: Drain) -> None:
    publish("poison")
    Message.objects.update(payload={"receiver": ["crm"]})
    publish("good")
    drain(channel="hook")
    states = dict(Message.objects.values_list("dedupe_key", "state"))
    assert states == {"poison": State.DEAD, "good": State.SENT}
