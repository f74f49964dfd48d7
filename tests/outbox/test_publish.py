"""publish() and cancel(): a message exists exactly if its transaction committed; one key is one message."""

import email
import email.policy
import re
import threading
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from email.header import decode_header, make_header
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils.timezone import now
from django.utils.translation import gettext_lazy

import outbox
from outbox import errors
from outbox.models import Message, State

pytestmark = pytest.mark.django_db(transaction=True)

MAIL = {"to": "anna@example.org", "subject": "Invoice 7", "text": "Grüße, bitte zahlen.\n.\n", "from": "b@example.com"}


def publish(key: str = "k", content: dict[str, Any] | None = None, **kwargs: Any) -> Message:
    with transaction.atomic():
        return outbox.publish("email", content or MAIL, dedupe_key=key, **kwargs)


def payload(message: Message) -> Any:
    return message.payload


def test_publish_outside_atomic_is_refused() -> None:
    with pytest.raises(errors.NotInTransaction, match="call it inside transaction"):
        outbox.publish("email", MAIL, dedupe_key="k")
    with pytest.raises(errors.NotInTransaction):
        outbox.cancel("k")
    assert not Message.objects.exists()


@pytest.mark.parametrize("uses_zones", [True, False])
@pytest.mark.parametrize(
    "not_before",
    [
        None,
        datetime(2026, 12, 25, 2, 30, tzinfo=ZoneInfo("Asia/Tokyo")),
        datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")),  # twice that night: equal to none elsewhere
    ],
)
def test_published_message_is_as_returned(not_before: datetime | None, uses_zones: bool, settings: Any) -> None:
    settings.USE_TZ = uses_zones
    message = publish(not_before=not_before)
    stored = Message.objects.get()
    assert not message.get_deferred_fields()
    for field in Message._meta.concrete_fields:
        assert getattr(stored, field.name) == getattr(message, field.name), field.name
    assert stored.state == State.PENDING
    assert abs(stored.created_at - now()) < timedelta(minutes=1)


def test_rolled_back_transaction_leaves_no_message() -> None:
    with transaction.atomic():
        outbox.publish("email", MAIL, dedupe_key="k")
        transaction.set_rollback(True)
    assert not Message.objects.exists()


def test_rolled_back_savepoint_drops_only_its_own_messages() -> None:
    with transaction.atomic():
        outbox.publish("email", MAIL, dedupe_key="kept")
        with transaction.atomic():
            outbox.publish("email", MAIL, dedupe_key="dropped")
            transaction.set_rollback(True)
    assert [m.dedupe_key for m in Message.objects.all()] == ["kept"]


def test_same_key_and_content_is_the_message_that_exists() -> None:
    first = publish()
    second = publish(content=dict(reversed(MAIL.items())))
    assert second.id == first.id
    assert second.payload == first.payload  # not rendered again: the same Message-ID and Date
    assert Message.objects.count() == 1


@pytest.mark.parametrize("content", [{**MAIL, "subject": "Invoice 8"}, {**MAIL, "headers": {"X-A": "1"}}])
def test_same_key_and_other_content_is_a_conflict_that_names_both(content: dict[str, Any]) -> None:
    first = publish()
    with pytest.raises(errors.DedupeConflict) as caught:
        publish(content=content)
    assert caught.value.message_id == first.id
    assert caught.value.digest == first.digest != caught.value.other_digest
    assert "'k'" in str(caught.value)
    assert str(first.id) in str(caught.value)


def test_a_failed_publish_leaves_the_callers_transaction_usable() -> None:
    publish()
    with transaction.atomic():
        with pytest.raises(errors.DedupeConflict):
            outbox.publish("email", {**MAIL, "subject": "other"}, dedupe_key="k")
        with pytest.raises(errors.InvalidContent):
            outbox.publish("email", {"to": "nobody"}, dedupe_key="bad")
        outbox.publish("email", MAIL, dedupe_key="k2")
    assert set(Message.objects.values_list("dedupe_key", flat=True)) == {"k", "k2"}


def test_six_transactions_publishing_one_key_at_once_make_one_message() -> None:
    # outbox A21
    # outbox B39: "exists?" then insert made six of six
    barrier = threading.Barrier(6)
    ids: list[int] = []

    def one() -> None:
        try:
            barrier.wait(10)
            ids.append(publish().id)
        finally:
            connection.close()

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(ids) == 6
    assert len(set(ids)) == 1
    assert Message.objects.count() == 1


def test_six_naive_publishers_that_look_first_make_several_messages() -> None:
    """The naive version: look whether it exists, then insert, with nothing in the database to decide."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE UNLOGGED TABLE naive_outbox (key text)")
    barrier = threading.Barrier(6)

    def one() -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM naive_outbox WHERE key = 'k'")
                known = cursor.fetchone()[0]
                barrier.wait(10)
                if not known:
                    cursor.execute("INSERT INTO naive_outbox VALUES ('k')")
        finally:
            connection.close()

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM naive_outbox")
            assert cursor.fetchone()[0] == 6
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE naive_outbox")


def nested(levels: int) -> Any:
    innermost: Any = {}
    for _ in range(levels):
        innermost = {"a": [innermost]} if levels < 1000 else [innermost]
    return innermost


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({**MAIL, "to": "no address"}, "not one email address"),
        ({**MAIL, "to": []}, "no recipient"),
        ({**MAIL, "to": ["a@example.org, b@example.org"]}, "not one email address"),
        ({**MAIL, "to": "jörg@example.org"}, "beyond ASCII"),
        ({**MAIL, "subject": "a\r\nBcc: evil@example.org"}, "newline|linefeed|header"),
        ({**MAIL, "to": "a@example.org\u2028b"}, "not one email address"),  # the parser would make it example.orgb
        ({**MAIL, "to": "a@exam\u200bple.org"}, "not one email address"),  # IDNA would make it example.org
        ({**MAIL, "to": "kunde@straße.example"}, "differs between two standards"),  # IDNA 2003: strasse.example
        ({**MAIL, "to": "a@βόλος.example"}, "differs between two standards"),
        ({**MAIL, "to": "a" * 65 + "@example.org"}, "longer than an address may be"),
        ({**MAIL, "headers": {"Message-ID": "<x@y>"}}, "made from the other fields"),
        ({**MAIL, "headers": {"Content-Language": "de"}}, "made from the other fields"),  # set_content() drops it
        ({**MAIL, "headers": {"X-A": "a" * 999}}, "a word of more than 998 characters"),
        ({**MAIL, "headers": {"X-A: 1\r\nBcc": "evil@example.org"}}, "not the name of a header"),
        ({**MAIL, "headers": {"Bcc ": "evil@example.org"}}, "not the name of a header"),
        ({**MAIL, "headers": {"": "a"}}, "not the name of a header"),
        ({**MAIL, "text": None}, "neither text nor html"),
        ({**MAIL, "text": 7}, "not text"),
        ({**MAIL, "txet": "a"}, "unknown fields txet"),
        ({**MAIL, "text": "a\0b"}, "NUL"),
        ({**MAIL, "text": datetime(2026, 1, 1)}, "not JSON"),
        ({**MAIL, "text": float("nan")}, "not JSON"),
        ({**MAIL, "attachments": [{"name": "a", "type": "text/plain", "base64": "%"}]}, "base64"),
        ({**MAIL, "attachments": [{"name": "a", "type": "pdf", "base64": ""}]}, "application/pdf"),
        ({**MAIL, "attachments": [{"name": "a", "type": "message/rfc822", "base64": ""}]}, "a mail and no file"),
        ({**MAIL, "attachments": [{"name": "a", "type": "multipart/mixed", "base64": ""}]}, "a mail and no file"),
        ({**MAIL, "attachments": [{"name": "a"}]}, "has no base64, type"),
        ({**MAIL, "attachments": 5}, "not iterable"),
        ({**MAIL, "headers": nested(200)}, "nested in more than 100 levels"),
        ({**MAIL, "headers": nested(100_000)}, "not JSON"),
        ({**MAIL, "subject": "\ud800"}, "surrogates not allowed"),
    ],
)
def test_content_that_cannot_be_sent_is_refused_at_publish(content: dict[str, Any], reason: str) -> None:
    with pytest.raises(errors.InvalidContent, match=reason):
        publish(content=content)
    assert not Message.objects.exists()


def test_a_backslash_u0000_in_plain_text_is_not_a_nul() -> None:
    publish(content={**MAIL, "text": r"\u0000"})
    assert Message.objects.count() == 1


@pytest.mark.parametrize(
    ("moment", "reason"),
    [
        (datetime(2026, 1, 1), "without a time zone"),
        (date(2026, 1, 1), "not a datetime"),
        ("2026-01-01", "not a datetime"),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))), "beyond what a calendar has"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=12))), "beyond what a calendar has"),
    ],
)
@pytest.mark.parametrize("name", ["not_before", "deadline"])
def test_moments_that_are_none_are_refused(name: str, moment: Any, reason: str) -> None:
    with pytest.raises(errors.InvalidContent, match=reason):
        publish(**{name: moment})
    assert not Message.objects.exists()


@pytest.mark.parametrize("key", ["", "k" * 501, "a\0b", "\ud800", 42, None, b"k", uuid.uuid4(), gettext_lazy("k")])
def test_keys_that_are_none_are_refused(key: Any) -> None:
    with pytest.raises(errors.InvalidContent, match="it is text of 1 to 500 characters"):
        publish(key)
    assert not Message.objects.exists()


@pytest.mark.parametrize("key", ["a\0b", "\ud800"])
def test_cancel_of_what_can_be_no_key_leaves_the_transaction_usable(key: str) -> None:
    publish()
    with transaction.atomic():
        assert not outbox.cancel(key)
        assert outbox.cancel("k")


def test_unknown_channel_names_the_known_ones() -> None:
    with pytest.raises(errors.UnknownChannel, match="'email'"), transaction.atomic():
        outbox.publish("fax", {}, dedupe_key="k")


def test_rendered_mail_is_seven_bit_and_complete() -> None:
    pdf = {"name": "Rechnung ü.pdf", "type": "application/pdf", "base64": "JVBERi0="}
    to = "Änna <anna@bücher.example>"
    mail = payload(publish(content={**MAIL, "to": to, "html": "<p>ü</p>", "attachments": [pdf]}))
    assert mail["rcpt_tos"] == ["anna@xn--bcher-kva.example"]
    assert mail["mail_from"] == "b@example.com"
    assert mail["raw"].isascii()
    assert f"Message-ID: {mail['message_id']}\r\n" in mail["raw"]
    assert "\r\nDate: " in mail["raw"]
    assert mail["message_id"].endswith("@example.com>")


@pytest.mark.parametrize(
    "value",
    [
        f"<https://example.com/{'a' * 150}?token={'b' * 60}>",
        " ".join(f"<{letter * 70}@example.org>" for letter in "abc"),
        "Füße " * 40 + "am Ende",
        "a" * 60 + " é " + "b" * 60,
        "請求書のお知らせ  " * 12 + "。",
        "Résumé  double  spaces é é",
        "Invoice for " + "x" * 100,
    ],
)
def test_long_headers_are_read_as_they_were_written(value: str) -> None:
    raw = payload(publish(content={**MAIL, "subject": value, "headers": {"List-Unsubscribe": value}}))["raw"]
    for name in ("Subject", "List-Unsubscribe"):
        assert str(email.message_from_string(raw, policy=email.policy.default)[name]).lstrip() == value
        unfolded = re.sub("\r\n", "", email.message_from_string(raw)[name]).lstrip()
        assert str(make_header(decode_header(unfolded))) == value
    if value.isascii():
        assert "=?" not in raw  # what reads such a header does not decode words
    else:
        words = re.findall(r"=\?\S+\?=", raw)
        assert max(map(len, words)) <= 75  # RFC 2047 2


def test_without_time_zones_in_the_project_moments_are_the_same(settings: Any) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Tokyo"
    start = datetime.now(UTC)
    mail = payload(publish(not_before=start + timedelta(hours=1), deadline=start + timedelta(hours=2)))
    sent = email.message_from_string(mail["raw"], policy=email.policy.default)["Date"].datetime
    assert abs(sent - start) < timedelta(minutes=1)
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM available_at - created_at)::float8 FROM outbox_message")
        assert 3590 < cursor.fetchone()[0] < 3610


def test_bcc_is_in_the_envelope_only() -> None:
    mail = payload(publish(content={**MAIL, "bcc": ["hidden@example.org"]}))
    assert mail["rcpt_tos"] == ["anna@example.org", "hidden@example.org"]
    assert "hidden" not in mail["raw"]


def test_cancel_takes_back_an_unsent_message_in_the_transaction() -> None:
    publish()
    with transaction.atomic():
        assert outbox.cancel("k")
        transaction.set_rollback(True)
    assert Message.objects.get().state == State.PENDING
    with transaction.atomic():
        assert outbox.cancel("k")
        assert outbox.cancel("k")
        assert not outbox.cancel("unknown")
    assert Message.objects.get().state == State.CANCELLED


@pytest.mark.parametrize(
    "values",
    [
        {"state": "sending", "claim": 1, "claimed_until": now()},
        {"state": "in_doubt", "claim": 1},
        {"state": "sent", "sent_at": now()},
    ],
)
def test_cancel_says_no_when_the_message_is_beyond_recall(values: dict[str, Any]) -> None:
    publish()
    Message.objects.update(**values)
    with transaction.atomic():
        assert not outbox.cancel("k")
    assert Message.objects.get().state == values["state"]


def test_cancel_that_came_too_late_leaves_the_caller_in_the_transaction_it_was_in() -> None:
    """Not in a savepoint that it left open: many would cost a transaction number each with the next write."""
    with transaction.atomic(), connection.cursor() as cursor:
        for _ in range(3):
            assert not outbox.cancel("unknown")
        outbox.publish("email", MAIL, dedupe_key="k")
        cursor.execute("SELECT xmin::text = pg_current_xact_id()::xid::text FROM outbox_message")
        assert cursor.fetchone() == (True,)


def test_nothing_leaves_sent_whoever_writes() -> None:
    publish()
    Message.objects.update(state="sent", sent_at=now())
    with pytest.raises(IntegrityError, match="is sent, which is final"):
        Message.objects.update(state="pending", sent_at=None)
    Message.objects.update(payload=None)  # pruning is not leaving


@pytest.mark.parametrize(
    ("values", "constraint"),
    [
        ({"state": "gone"}, "state_known"),
        ({"state": "claimed"}, "claim_while_held"),
        ({"claimed_until": now()}, "claim_while_held"),
        ({"state": "sent"}, "sent_at_if_sent"),
        ({"attempts": -1}, "attempts_not_negative"),
        ({"dedupe_key": ""}, "dedupe_key_not_empty"),
        ({"payload": None}, "pruned_only_when_done"),
    ],
)
def test_impossible_rows_are_refused_by_the_database(values: dict[str, Any], constraint: str) -> None:
    publish()
    with pytest.raises(IntegrityError, match=constraint):
        Message.objects.update(**values)
