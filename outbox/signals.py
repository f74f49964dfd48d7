"""What other parts of a project may want to hear about."""

from django.dispatch import Signal

parked = Signal()
"""A message came to wait for a person. Sent by the drainer that noticed, after it was written down, outside any
transaction: message_id, channel, dedupe_key, state ("in_doubt" or "dead"), reason, using. A receiver that raises is
logged and stops nothing. A drainer that is killed between the two says nothing: alert on the metrics as well."""
