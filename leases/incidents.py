"""One incident per lease, whoever sees it first; one for all leases when Redis lost its memory."""

import logging

from django.db import connections
from redis.exceptions import RedisError

from leases import fence, memory, metrics
from leases.conf import conf
from leases.models import Incident, LeaseRecord
from leases.process import ProcessIdentity
from leases.signals import incident_reported

logger = logging.getLogger("leases")

#: What is seen when a key is gone, which a Redis that lost its memory explains for all leases at once.
_KEY_IS_GONE = {Incident.Detector.KEY_GONE, Incident.Detector.RELEASE_REFUSED, Incident.Detector.WATCHER}

# The end of a lease is on record before its key is deleted. If nobody else was registered until then, nothing
# overlapped: a key that the release found gone, or another's, it may have deleted itself, before the reply was lost.
_ENDED_IN_TIME = """
SELECT EXISTS (
  SELECT FROM leases_leaserecord mine
   WHERE mine.resource = %(resource)s AND mine.token = %(token)s AND mine."end" = 'released'
     AND NOT EXISTS (
       SELECT FROM leases_leaserecord other
        WHERE other.resource = mine.resource AND other.token > mine.token AND other.acquired_at <= mine.ended_at))
"""

# A fate only ever becomes better known: `running` is seen, `crashed` is concluded, `unknown` is neither.
_REPORT = """
INSERT INTO leases_incident AS i (resource, token, holder, detector, fate, host, pid, seen_at)
SELECT %(resource)s, %(token)s, %(holder)s, %(detector)s, %(fate)s, %(host)s, %(pid)s, clock_timestamp()
 WHERE {condition}
ON CONFLICT (resource, token) DO UPDATE SET fate = excluded.fate
 WHERE i.fate <> excluded.fate AND i.fate <> 'running' AND excluded.fate <> 'unknown'
RETURNING i.id, xmax = 0
"""
_GOES_ON = _REPORT.format(condition="true")
_ENDED = f"WITH ended AS ({fence.END}) {_GOES_ON}"
# The watcher speaks only of what it ends itself: a holder may have released its lease since it was looked at.
_ENDED_NOW = f"WITH ended AS ({fence.END} RETURNING 1) {_REPORT.format(condition='EXISTS (SELECT FROM ended)')}"


def report(
    detector: Incident.Detector,
    *,
    resource: str,
    token: int,
    holder: str,
    process: ProcessIdentity,
    fate: Incident.Fate,
    using: str,
    ended: bool = True,
) -> None:
    """Record that the lease ended without release, and tell the log and the signal's receivers if that is news.

    With `ended=False` the lease goes on all the same, as when its key was put back. A key that is gone because Redis
    lost its memory is no incident of its own, nor is one that a release found gone although nobody else was granted the
    resource before the work ended. Raises django.db.DatabaseError.
    """
    noticed_by_holder = fate == Incident.Fate.RUNNING
    values: dict[str, str | int] = {
        "resource": resource,
        "token": token,
        "holder": holder,
        "detector": detector.value,
        "fate": fate.value,
        "host": process.host,
        "pid": process.pid,
        "end": (LeaseRecord.End.LOST if noticed_by_holder else LeaseRecord.End.EXPIRED).value,
    }
    explained = detector in _KEY_IS_GONE and _redis_forgot(resource, token, using=using)
    if detector == Incident.Detector.RELEASE_REFUSED and not explained and _ended_in_time(resource, token, using=using):
        logger.warning(
            "The key of %s (token %d) was gone when it was released: a reply was lost and the request repeated, or "
            "Redis forgot it. Nobody else had the lease until then.",
            resource,
            token,
            extra={"event": "lease.gone", "resource": resource, "token": token},
        )
        return
    if explained and not Incident.objects.using(using).filter(resource=resource, token=token).exists():
        if ended:
            with connections[using].cursor() as cursor:
                cursor.execute(fence.END, values)
        return
    with connections[using].cursor() as cursor:
        watched = detector == Incident.Detector.WATCHER
        cursor.execute(_ENDED_NOW if watched else _ENDED if ended else _GOES_ON, values)
        row = cursor.fetchone()
    if row is None:
        return
    incident = Incident.objects.using(using).get(pk=row[0])
    _tell(
        incident,
        f"The lease on {resource} (token {token}) of process {process.pid} on {process.host} ended without release: "
        f"{incident.get_detector_display()}; its holder: {incident.get_fate_display()}.",
        created=row[1],
    )


def check_memory(using: str) -> bool:
    """Report one incident if Redis lost its memory since anybody last looked; True if so.

    Raises redis.RedisError and django.db.DatabaseError.
    """
    loss = memory.look(using)
    if loss is None:
        return False
    own = ProcessIdentity.own()
    incident = Incident.objects.using(using).create(
        resource=f"redis:{conf.REDIS_ALIAS}",
        token=round(loss.lost_at.timestamp() * 1_000_000),
        holder="",
        detector=Incident.Detector.MEMORY_LOST,
        fate=Incident.Fate.UNKNOWN,
        host=own.host,
        pid=own.pid,
        seen_at=loss.lost_at,
    )
    how = "has forgotten everything"
    if not loss.flushed:
        how = "restarted or failed over and may have forgotten what came last"
    _tell(
        incident,
        f"The Redis behind LEASES_REDIS_ALIAS={conf.REDIS_ALIAS} {how}. Holders put their leases back as they renew; "
        "tokens go up all the same. Find out why, and look at its persistence and eviction policy.",
        created=True,
    )
    return True


def _ended_in_time(resource: str, token: int, *, using: str) -> bool:
    with connections[using].cursor() as cursor:
        cursor.execute(_ENDED_IN_TIME, {"resource": resource, "token": token})
        return bool(cursor.fetchone()[0])


def _redis_forgot(resource: str, token: int, *, using: str) -> bool:
    if memory.was_lost_during(resource, token, using=using):
        return True
    if not memory.is_watched(using):
        return False
    try:
        check_memory(using)
    except RedisError:
        return False
    return memory.was_lost_during(resource, token, using=using)


def _tell(incident: Incident, text: str, *, created: bool) -> None:
    if created:
        metrics.incident(detector=incident.detector, fate=incident.fate)
    level = logging.INFO if incident.fate == Incident.Fate.CRASHED else logging.WARNING
    data = {"resource": incident.resource, "token": incident.token}
    seen = {"detector": incident.detector, "fate": incident.fate}
    logger.log(level, "%s", text, extra={"event": "incident", **data, **seen})
    for receiver, error in incident_reported.send_robust(sender=Incident, incident=incident, created=created):
        if isinstance(error, Exception):
            logger.error("The incident's receiver %r failed.", receiver, exc_info=error)
