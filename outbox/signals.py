"""What other parts of a project may want to hear about."""

from django.dispatch import Signal

parked = Signal()
"""A message came to wait for a person. Sent by the drainer that noticed, after it was written down, outside any
transaction: message_id, channel, dedupe_key, state ("in_doubt" or "dead"), reason, using. A receiver that raises is
logged and stops nothing. A drainer that is killed between the two says nothing: alert on the metrics as well."""

resending = Signal()
"""A person wants a message that is in doubt or dead sent after all. Sent in the transaction of that decision, before
the message is locked, so that a receiver may lock rows of its own first: dedupe_key, channel, action ("send again" or
"requeue"), using. A receiver that returns a sentence refuses the decision, and the person reads it; one that raises
undoes it. For whoever published the message and knows that what it tells about is no longer so."""
