"""Two drainers as one writes them first. Each fails in its own way, and the tests show it.

python -m tests.outbox.naive send-then-mark     a crash in between sends twice
python -m tests.outbox.naive mark-then-send     a crash in between loses the message
"""

import logging
import sys
from typing import Any

import django


def main(how: str) -> None:
    django.setup()
    from django.core import mail
    from django.utils import timezone

    from outbox.channels.email import StoredEmail
    from outbox.models import Message

    log = logging.getLogger("outbox.naive")

    def send(message: Message) -> None:
        payload: Any = message.payload
        mail.get_connection().send_messages([StoredEmail(payload)])
        log.info("sent", extra={"event": "outbox.handed_over"})

    def mark(message: Message) -> None:
        Message.objects.filter(id=message.id).update(state="sent", sent_at=timezone.now())
        log.info("marked", extra={"event": "outbox.marked"})

    for message in Message.objects.filter(state="pending").order_by("id"):
        for step in (send, mark) if how == "send-then-mark" else (mark, send):
            step(message)


if __name__ == "__main__":
    main(sys.argv[1])
