"""What other apps may connect to."""

from django.dispatch import Signal

#: A lease ended without release, or more became known of one that did.
#: Arguments: `incident` (leases.models.Incident), `created` (False when only its fate became known).
#: Sent outside any transaction, from the thread that saw it; an error in a receiver is logged and stops nothing.
incident_reported = Signal()
