"""What a person has to look at, mailed to the operators through the outbox.

An incident whose holder crashed is recorded and mailed to nobody: the next worker does its work. One whose holder is
running, or may be, says that a ttl is too short, a process was frozen, or Redis is not to be relied on. A message that
is in doubt or dead waits for a decision.
"""

import logging
import shlex
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db import transaction

import outbox
from leases.models import Incident
from leases.signals import incident_reported
from outbox.errors import DedupeConflict
from outbox.signals import parked

logger = logging.getLogger("project.alerts")

#: What comes on top within an hour is in the log and the admin only, and the last mail says so.
MAILS_PER_HOUR = 10
_PREFIX = "alert:"


def mail_incident(sender: type[Incident], incident: Incident, created: bool, **kwargs: Any) -> None:
    """Mail an incident when it is new, unless its holder crashed."""
    if not created or incident.fate == Incident.Fate.CRASHED:
        return
    text = (
        f"The lease on {incident.resource} (token {incident.token}) ended without release.\n\n"
        f"Seen: {incident.get_detector_display()}, at {incident.seen_at:%Y-%m-%d %H:%M:%S} UTC.\n"
        f"Its holder: process {incident.pid} on {incident.host}, {incident.get_fate_display()}.\n\n"
        "Nothing was written twice: the fence refuses whatever that holder still tries to write. But work was wasted, "
        "and something is slower than LEASES_TTL allows for, or was frozen.\n\n"
        f"Look at it: python manage.py leases show {incident.resource}\n"
    )
    _mail("incident", incident.seen_at, f"Lease on {incident.resource} ended under its holder", text)


def mail_parked(sender: object, *, dedupe_key: str, state: str, reason: str, **kwargs: Any) -> None:
    """Mail that a message waits for a person; one about an alert itself would only make more of them."""
    if dedupe_key.startswith(_PREFIX):
        return
    text = (
        f"The message {dedupe_key} is {state.replace('_', ' ')}: {reason}.\n\n"
        "It is not sent again by itself. Find out whether it arrived, then decide, in the admin or here:\n"
        f"python manage.py outbox show {shlex.quote(dedupe_key)}\n"
        "python manage.py outbox resolve --help\n"
    )
    _mail("parked", datetime.now(UTC), f"A message is {state.replace('_', ' ')}", text)


def _mail(kind: str, at: datetime, subject: str, text: str) -> None:
    """Publish a mail to each operator, unless the hour has had its mails of this kind.

    The hour's mails are numbered, and the number is in the dedupe key: however many processes report at once, no number
    goes out twice, and none beyond the last.
    """
    for operator in settings.ALERT_EMAILS:
        if not any(
            _publish(f"{_PREFIX}{kind}:{at:%Y-%m-%dT%H}:{number}:{operator}", operator, subject, text, number)
            for number in range(1, MAILS_PER_HOUR + 1)
        ):
            logger.warning("Not mailed to %s, %d went out within the hour: %s", operator, MAILS_PER_HOUR, subject)


def _publish(key: str, operator: str, subject: str, text: str, number: int) -> bool:
    if number == MAILS_PER_HOUR:
        text += f"\nThis is mail {MAILS_PER_HOUR} within an hour. Further ones are in the log and the admin only.\n"
    try:
        with transaction.atomic():
            outbox.publish("email", {"to": operator, "subject": subject, "text": text}, dedupe_key=key)
    except DedupeConflict:
        return False
    return True


incident_reported.connect(mail_incident, dispatch_uid="project.mail_incident")
parked.connect(mail_parked, dispatch_uid="project.mail_parked")
