"""The audit of what people do to leases, or past them.

A table of its own rather than the admin's log: that needs the admin app and a user row, and a person at a shell, a
migration or a restore has neither. The row is written in the transaction of what it tells of, so neither is without the
other; who may write it is a matter of database roles (GRANT INSERT ON leases_intervention).
"""

import getpass
import os
import socket

from django.db import connections

from leases.errors import ReasonMissing
from leases.models import Intervention

_RECORD = """
INSERT INTO leases_intervention (action, resource, token, reason, by, database_role, at)
VALUES (%(action)s, %(resource)s, %(token)s, %(reason)s, %(by)s, current_user, clock_timestamp())
"""


def record(
    action: Intervention.Action, *, reason: str, by: str, using: str, resource: str = "", token: int | None = None
) -> None:
    """Write the audit row into the transaction that is open on `using`; raises ReasonMissing."""
    with connections[using].cursor() as cursor:
        cursor.execute(
            _RECORD,
            {
                "action": action.value,
                "resource": resource,
                "token": token,
                "reason": validated_reason(reason),
                "by": by[:255],
            },
        )


def validated_reason(reason: str) -> str:
    """Return the reason without surrounding white space; raises ReasonMissing if nothing is left."""
    if not reason.strip():
        raise ReasonMissing
    return reason.strip()


def operator() -> str:
    """Return who runs this process, as `user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
