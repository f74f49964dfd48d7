"""The email channel: mail is rendered once, at publish, and goes out through Django's mail settings."""

from collections.abc import Mapping
from typing import Any

from django.conf import settings as django_settings

from outbox.channels.base import Answer, Channel, Parcel
from outbox.channels.email_rendering import render
from outbox.errors import InvalidContent


class EmailChannel(Channel):
    """Sends each message as one email; an email nobody confirmed is in doubt, and is not sent twice."""

    def prepare(self, content: Mapping[str, Any], *, dedupe_key: str) -> Any:
        """Render the mail with its Message-ID and Date; see `render` for the fields."""
        try:
            return render(content, default_from=django_settings.DEFAULT_FROM_EMAIL)
        except (ValueError, LookupError) as error:
            raise InvalidContent(self.name, str(error)) from error

    def send(self, parcel: Parcel) -> Answer:
        raise NotImplementedError
