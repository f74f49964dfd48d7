"""Mail through any Django email backend but SMTP: one call, and what it tells."""

import sys
from typing import Any

from outbox.channels.base import Answer, Outcome
from outbox.channels.webhook import retry_after

# Answers of a provider's API that no repetition of the same request can change. Wrong credentials are not among them:
# they are put right, and the mail goes out.
_REFUSED_FOR_GOOD = {400, 413, 422}


def hand_over(backend: Any, message: Any) -> Answer:
    """Send one message; exactly 1 is success. Raises what the backend raises, unless it carries the provider's no."""
    try:
        count = backend.send_messages([message])
    except Exception as error:
        answer = _refusal(error)
        if answer is None:
            raise
        return answer
    if count == 1:
        id = getattr(getattr(message, "anymail_status", None), "message_id", None)
        return Answer(Outcome.ACCEPTED, provider_id="" if id is None else str(id))
    return Answer(Outcome.UNKNOWN, f"{type(backend).__name__}.send_messages() gave {count!r}, not 1")


def _refusal(error: Exception) -> Answer | None:
    """What a provider said no to, as django-anymail's exceptions carry it; None when it did not say no."""
    exceptions = sys.modules.get("anymail.exceptions")
    if exceptions is not None and isinstance(error, exceptions.AnymailRecipientsRefused):
        return Answer(Outcome.REFUSED_PERMANENTLY, str(error))
    status = getattr(error, "status_code", None)
    if not isinstance(status, int) or status // 100 != 4 or status == 408:
        return None
    outcome = Outcome.REFUSED_PERMANENTLY if status in _REFUSED_FOR_GOOD else Outcome.REFUSED_TEMPORARILY
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    return Answer(outcome, f"{status} {error}", retry_after=retry_after(headers.get("retry-after")))
