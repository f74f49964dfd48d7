"""Email backends that are not SMTP, as other projects use them."""

from typing import Any

from django.core.mail.backends.base import BaseEmailBackend


class LiarBackend(BaseEmailBackend):
    """Says that it sent nothing, without an error."""

    def send_messages(self, email_messages: Any) -> int:
        return 0


class RaisingBackend(BaseEmailBackend):
    """Fails at a point nobody knows."""

    def send_messages(self, email_messages: Any) -> int:
        raise RuntimeError("no idea")
