"""One of the two peers as a program of its own, since they need other packages and a newer Python than we do.

    PEER_DATABASE='{"HOST": ..., "NAME": ...}' python peer_program.py reliable|postoffice prepare COUNT
    ... python peer_program.py reliable|postoffice drain noop|smtp

`prepare` makes the tables, empties them and publishes COUNT mails; `drain` hands over until nothing is due, and prints
the seconds that took. Their settings are their defaults, except what benchmarks/outbox/peers.py says.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

SUBJECT = "Invoice {}"
TEXT = "x" * 450
APPS = {"reliable": "reliable_outbox", "postoffice": "post_office"}
SENDER, RECIPIENT = "b@example.com", "anna@example.org"


class NoopBackend:
    """A mail backend that hands over nothing."""

    def __init__(self, *args: Any, **options: Any) -> None: ...

    def open(self) -> None: ...

    def close(self) -> None: ...

    def send_messages(self, messages: Sequence[Any]) -> int:
        return len(messages)


class Noop:
    """A destination that hands over nothing."""

    def deliver(self, envelope: Any) -> None: ...


class Mail:
    """A destination that mails, on one connection per thread."""

    def __init__(self) -> None:
        import threading

        self._own = threading.local()

    def deliver(self, envelope: Any) -> None:
        from django.core import mail

        if not hasattr(self._own, "connection"):
            self._own.connection = mail.get_connection()
            self._own.connection.open()
        message = mail.EmailMessage(envelope.payload["subject"], TEXT, SENDER, [RECIPIENT])
        self._own.connection.send_messages([message])


def configure(peer: str, how: str) -> None:
    from django.conf import settings

    backends = {"noop": "peer_program.NoopBackend", "smtp": "django.core.mail.backends.smtp.EmailBackend"}
    settings.configure(
        INSTALLED_APPS=["django.contrib.contenttypes", APPS[peer]],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "OPTIONS": {"server_side_binding": True, "prepare_threshold": 5},
                **json.loads(os.environ["PEER_DATABASE"]),
            }
        },
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}],
        EMAIL_HOST="127.0.0.1",
        EMAIL_PORT=int(os.environ.get("PEER_SMTP_PORT", "25")),
        EMAIL_TIMEOUT=10,
        POST_OFFICE={"BACKENDS": {"default": backends[how]}},
        RELIABLE_OUTBOX={
            "BATCH_SIZE": 100,
            "LEASE_SECONDS": 3.0 if how == "smtp" else 60.0,
            "DESTINATIONS": {"default": {"BACKEND": {"noop": "peer_program.Noop", "smtp": "peer_program.Mail"}[how]}},
        },
        LOGGING={"version": 1, "disable_existing_loggers": False, "root": {"level": "CRITICAL"}},
    )
    import django

    django.setup()


def prepare(peer: str, count: int) -> None:
    from django.core.management import call_command
    from django.db import connection, transaction

    call_command("migrate", verbosity=0)
    tables = {"reliable": "reliable_outbox_outboxmessage", "postoffice": "post_office_email"}
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {tables[peer]} RESTART IDENTITY CASCADE")
    if peer == "reliable":
        from reliable_outbox import publish

        with transaction.atomic():
            for number in range(count):
                publish("mail", {"subject": SUBJECT.format(number), "text": TEXT})
    else:
        from post_office import mail

        mails = [
            {"sender": SENDER, "recipients": RECIPIENT, "subject": SUBJECT.format(number), "message": TEXT}
            for number in range(count)
        ]
        mail.send_many(mails)
    with connection.cursor() as cursor:
        cursor.execute(f"VACUUM ANALYZE {tables[peer]}")
        cursor.execute("CHECKPOINT")


def drain(peer: str, how: str) -> None:
    from django.core.management import call_command

    began = time.perf_counter()
    if peer == "reliable":
        call_command("outbox_worker", "--burst", "--concurrency", {"noop": "1", "smtp": "4"}[how])
    else:
        call_command("send_queued_mail")
    print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    peer, what, argument = sys.argv[1:]
    configure(peer, argument if what == "drain" else "noop")
    prepare(peer, int(argument)) if what == "prepare" else drain(peer, argument)
