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
from django.db.models import Count, QuerySet

import outbox
from leases.models import Incident
from leases.signals import incident_reported
from outbox.errors import DedupeConflict
from outbox.signals import parked

logger = logging.getLogger("project.alerts")

#: Mails about messages; what comes on top within an hour is in the log and the admin only, and the last mail says so.
MAILS_PER_HOUR = 10
#: Which incidents of an hour are mailed: the first ones each, then one mail for all there are by then, since an outage
#: that outlasts the ttl ends every lease there is.
MAILED_INCIDENTS = (1, 2, 3, 10, 100, 1_000, 10_000, 100_000)
_ONE_BY_ONE = 3
_PREFIX = "alert:"
_LAST_MAIL = f"\nThis is mail {MAILS_PER_HOUR} within an hour. Further ones are in the log and the admin only.\n"


def mail_incident(sender: type[Incident], incident: Incident, created: bool, **kwargs: Any) -> None:
    """Mail an incident when it is new, unless its holder crashed, or it is one of many within the hour."""
    if not created or incident.fate == Incident.Fate.CRASHED:
        return
    hour = incident.seen_at.replace(minute=0, second=0, microsecond=0)
    of_the_hour = Incident.objects.filter(seen_at__gte=hour).exclude(fate=Incident.Fate.CRASHED)
    count = of_the_hour.count()
    number = max(number for number in MAILED_INCIDENTS if number <= max(count, 1))
    if number <= _ONE_BY_ONE:
        subject, text = f"Lease on {incident.resource} ended under its holder", _about_one(incident)
    else:
        subject = f"{count} leases ended under their holders since {hour:%H:%M} UTC"
        text = _about_many(of_the_hour, subject)
    if number == _ONE_BY_ONE:
        text += (
            f"\nThis is incident {number} within the hour. From here on there is one mail for many: at the 10th, the "
            "100th, the 1000th.\n"
        )
    for operator in settings.ALERT_EMAILS:
        _publish(f"{_PREFIX}incident:{hour:%Y-%m-%dT%H}:{number}:{operator}", operator, subject, text)


def _about_one(incident: Incident) -> str:
    return (
        f"The lease on {incident.resource} (token {incident.token}) ended without release.\n\n"
        f"Seen: {incident.get_detector_display()}, at {incident.seen_at:%Y-%m-%d %H:%M:%S} UTC.\n"
        f"Its holder: process {incident.pid} on {incident.host}, {incident.get_fate_display()}.\n\n"
        "Nothing was written twice: the fence refuses whatever that holder still tries to write. But work was wasted, "
        "and something is slower than LEASES_TTL allows for, or was frozen.\n\n"
        f"Look at it: python manage.py leases show {shlex.quote(incident.resource)}\n"
    )


def _about_many(incidents: QuerySet[Incident], subject: str) -> str:
    kinds = incidents.values_list("detector", "host").annotate(leases=Count("id")).order_by("-leases")
    lines = "".join(
        f"  {leases:>7}  {Incident.Detector(detector).label}, on {host}\n" for detector, host, leases in kinds[:20]
    )
    return (
        f"{subject}:\n\n{lines}\n"
        "So many at once have one cause: Redis was away for longer than LEASES_TTL, or machines were frozen. Nothing "
        "was written twice, and the jobs went back to their queue. Each lease is in the admin, under incidents.\n\n"
        "Look at Redis and at those hosts: python manage.py leases doctor\n"
    )


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
            _publish(
                f"{_PREFIX}{kind}:{at:%Y-%m-%dT%H}:{number}:{operator}",
                operator,
                subject,
                text + (_LAST_MAIL if number == MAILS_PER_HOUR else ""),
            )
            for number in range(1, MAILS_PER_HOUR + 1)
        ):
            logger.warning("Not mailed to %s, %d went out within the hour: %s", operator, MAILS_PER_HOUR, subject)


def _publish(key: str, operator: str, subject: str, text: str) -> bool:
    """Publish a mail; False if another process did, however many report at once."""
    try:
        with transaction.atomic():
            outbox.publish("email", {"to": operator, "subject": subject, "text": text}, dedupe_key=key)
    except DedupeConflict:
        return False
    return True


incident_reported.connect(mail_incident, dispatch_uid="project.mail_incident")
parked.connect(mail_parked, dispatch_uid="project.mail_parked")
