"""One incident per lease, whoever sees it first."""

import logging

from django.db import connections

from leases.models import Incident, LeaseRecord
from leases.process import ProcessIdentity
from leases.signals import incident_reported

logger = logging.getLogger("leases")

# A fate only ever becomes better known: `running` is seen, `crashed` is concluded, `unknown` is neither.
_REPORT = """
WITH ended AS (
  UPDATE leases_leaserecord SET ended_at = clock_timestamp(), "end" = %(end)s
   WHERE resource = %(resource)s AND token = %(token)s AND ended_at IS NULL)
INSERT INTO leases_incident AS i (resource, token, holder, detector, fate, host, pid, seen_at)
VALUES (%(resource)s, %(token)s, %(holder)s, %(detector)s, %(fate)s, %(host)s, %(pid)s, clock_timestamp())
ON CONFLICT (resource, token) DO UPDATE SET fate = excluded.fate
 WHERE i.fate <> excluded.fate AND i.fate <> 'running' AND excluded.fate <> 'unknown'
RETURNING i.id, xmax = 0
"""


def report(
    detector: Incident.Detector,
    *,
    resource: str,
    token: int,
    holder: str,
    process: ProcessIdentity,
    fate: Incident.Fate,
    using: str,
) -> None:
    """Record that the lease ended without release, and tell the log and the signal's receivers if that is news."""
    noticed_by_holder = fate == Incident.Fate.RUNNING
    with connections[using].cursor() as cursor:
        cursor.execute(
            _REPORT,
            {
                "resource": resource,
                "token": token,
                "holder": holder,
                "detector": detector.value,
                "fate": fate.value,
                "host": process.host,
                "pid": process.pid,
                "end": (LeaseRecord.End.LOST if noticed_by_holder else LeaseRecord.End.EXPIRED).value,
            },
        )
        row = cursor.fetchone()
    if row is None:
        return
    incident, created = Incident.objects.using(using).get(pk=row[0]), row[1]
    logger.log(
        logging.INFO if fate == Incident.Fate.CRASHED else logging.WARNING,
        "The lease on %s (token %d) of process %d on %s ended without release: %s; its holder: %s.",
        resource,
        token,
        process.pid,
        process.host,
        incident.get_detector_display(),
        incident.get_fate_display(),
        extra={
            "event": "incident",
            "resource": resource,
            "token": token,
            "detector": incident.detector,
            "fate": fate.value,
        },
    )
    for receiver, error in incident_reported.send_robust(sender=Incident, incident=incident, created=created):
        if isinstance(error, Exception):
            logger.error("The incident's receiver %r failed.", receiver, exc_info=error)
