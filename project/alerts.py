"""Incidents to the operators, by email through the outbox.

An incident whose holder crashed is recorded and mailed to nobody: the next worker does its work. One whose holder is
running, or may be, says that a ttl is too short, a process was frozen, or Redis is not to be relied on.
"""

import logging
from typing import Any

from django.conf import settings
from django.db import transaction

import outbox
from leases.models import Incident
from leases.signals import incident_reported
from outbox.errors import DedupeConflict

logger = logging.getLogger("project.alerts")

#: What comes on top within an hour is in the log and the admin only, and the last mail says so.
MAILS_PER_HOUR = 10


def mail_incident(sender: type[Incident], incident: Incident, created: bool, **kwargs: Any) -> None:
    """Publish a mail to each operator, unless the holder crashed or the hour has had its mails.

    The hour's mails are numbered, and the number is in the dedupe key: however many processes report at once, no number
    goes out twice, and none beyond the last.
    """
    if not created or incident.fate == Incident.Fate.CRASHED:
        return
    for operator in settings.ALERT_EMAILS:
        if not _publish_numbered(incident, operator):
            logger.warning("No mail about %s: %d went out within the hour.", incident, MAILS_PER_HOUR)


def _publish_numbered(incident: Incident, operator: str) -> bool:
    for number in range(1, MAILS_PER_HOUR + 1):
        key = f"alert:incident:{incident.seen_at:%Y-%m-%dT%H}:{number}:{operator}"
        content = _content(incident, operator, last=number == MAILS_PER_HOUR)
        try:
            with transaction.atomic():
                outbox.publish("email", content, dedupe_key=key)
        except DedupeConflict:
            continue
        return True
    return False


def _content(incident: Incident, operator: str, *, last: bool) -> dict[str, str]:
    text = (
        f"The lease on {incident.resource} (token {incident.token}) ended without release.\n\n"
        f"Seen: {incident.get_detector_display()}, at {incident.seen_at:%Y-%m-%d %H:%M:%S} UTC.\n"
        f"Its holder: process {incident.pid} on {incident.host}, {incident.get_fate_display()}.\n\n"
        "Nothing was written twice: the fence refuses whatever that holder still tries to write. But work was wasted, "
        "and something is slower than LEASES_TTL allows for, or was frozen.\n\n"
        f"Look at it: python manage.py leases show {incident.resource}\n"
    )
    if last:
        text += f"\nThis is mail {MAILS_PER_HOUR} within an hour. Further ones are in the log and the admin only.\n"
    return {"to": operator, "subject": f"Lease on {incident.resource} ended under its holder", "text": text}


incident_reported.connect(mail_incident, dispatch_uid="project.mail_incident")
