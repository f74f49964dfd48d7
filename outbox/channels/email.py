"""The email channel: mail is rendered once, at publish, and goes out through Django's mail settings."""

import email
import email.message
import email.policy
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

from django.conf import settings as django_settings
from django.core import mail
from django.core.exceptions import ImproperlyConfigured
from django.core.mail.backends.smtp import EmailBackend

from outbox.channels.backends import hand_over
from outbox.channels.base import Answer, Channel, Parcel
from outbox.channels.email_rendering import Mail, render
from outbox.channels.smtp import DEFAULT_TIMEOUT_SECONDS, SmtpConversation
from outbox.errors import InvalidContent, InvalidSetting, PermanentFailure


class EmailChannel(Channel):
    """Sends each message as one email; an email nobody confirmed is in doubt, and is not sent twice.

    `using` is the alias in Django's MAILERS (Django 6.1 and later).
    """

    def __init__(self, name: str, *, using: str = "default") -> None:
        super().__init__(name)
        self._using = using
        self._backend: Any = None
        self._smtp: SmtpConversation | None = None

    def prepare(self, content: Mapping[str, Any], *, dedupe_key: str) -> Any:
        """Render the mail with its Message-ID and Date; see `render` for the fields."""
        try:
            return render(content, default_from=django_settings.DEFAULT_FROM_EMAIL)
        except (ValueError, LookupError, TypeError) as error:
            raise InvalidContent(self.name, str(error)) from error

    def send(self, parcel: Parcel) -> Answer:
        """Over SMTP step by step, so that what is in doubt is known; over any other backend as a whole."""
        if self._backend is None:
            self._backend = self._connection()
            if speaks_plain_smtp(self._backend):
                self._smtp = SmtpConversation(self._backend)
        try:
            stored: Mail = parcel.payload
            envelope, data = (stored["mail_from"], stored["rcpt_tos"]), stored["raw"].encode("ascii")
            message = None if self._smtp else StoredEmail(stored)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise PermanentFailure(f"the stored mail cannot be read: {error!r}") from error
        if self._smtp is not None:
            return self._smtp.hand_over(*envelope, data, parcel.deadline)
        parcel.deadline.check()
        return hand_over(self._backend, message)

    @property
    def send_timeout(self) -> timedelta:
        """As long as the mail server may be silent at one step; other backends do not say how long they take."""
        backend = self._backend or self._connection()
        timeout = getattr(backend, "timeout", None)
        if timeout is None and not speaks_plain_smtp(backend):
            return super().send_timeout
        return timedelta(seconds=timeout or DEFAULT_TIMEOUT_SECONDS)

    @property
    def has_timeout(self) -> bool:
        """Whether the project says how long to wait for a silent mail server, where that is ours to wait for."""
        backend = self._connection()
        return backend.timeout is not None if speaks_plain_smtp(backend) else True

    def close(self) -> None:
        """Close the connection to the mail server."""
        if self._smtp is not None:
            self._smtp.close()

    def _connection(self) -> Any:
        mailers = getattr(mail, "mailers", None)  # Django 6.1 and later
        if mailers is None and self._using == "default":
            return mail.get_connection()
        try:
            return (mailers or {})[self._using]
        except (ImproperlyConfigured, KeyError) as error:
            raise InvalidSetting(f"using of channel {self.name!r}", f"there is no such mailer: {error}") from error


def speaks_plain_smtp(backend: Any) -> bool:
    """Whether it is Django's SMTP backend, with its way of sending not replaced by a subclass."""
    return isinstance(backend, EmailBackend) and all(
        getattr(type(backend), method) is getattr(EmailBackend, method) for method in ("send_messages", "_send")
    )


class StoredEmail(mail.EmailMultiAlternatives):
    """A rendered mail as other backends want it: what they render themselves has the stored Message-ID and Date."""

    def __init__(self, stored: Mail) -> None:
        parsed = email.message_from_string(stored["raw"], _class=_Verbatim, policy=email.policy.SMTP)
        self._stored = cast("_Verbatim", parsed)
        self._stored.raw = stored["raw"]
        headers = {name: str(value) for name, value in self._stored.items()}
        plain = self._stored.get_body(("plain",))
        html = self._stored.get_body(("html",))
        written = {
            "from",
            "to",
            "cc",
            "reply-to",
            "subject",
            "mime-version",
            "content-type",
            "content-transfer-encoding",
        }
        to, cc, reply_to = (_listed(self._stored.get(name)) for name in ("To", "Cc", "Reply-To"))
        visible = {address.addr_spec for name in ("To", "Cc") for address in _addresses(self._stored.get(name))}
        super().__init__(
            subject=headers.get("Subject", ""),
            body=_text(plain or html),
            from_email=headers["From"],
            to=to,
            cc=cc,
            bcc=[address for address in stored["rcpt_tos"] if address not in visible],
            reply_to=reply_to,
            headers={name: value for name, value in headers.items() if name.lower() not in written},
        )
        if html and plain:
            self.attach_alternative(_text(html), "text/html")
        elif html:
            self.content_subtype = "html"
        for part in self._stored.iter_attachments():
            content = part.get_payload(decode=True)  # the very bytes; get_content() would decode text
            self.attach(part.get_filename(), content, part.get_content_type())

    def message(self, *args: Any, **kwargs: Any) -> Any:
        """The stored mail itself, for backends that hand over what message() gives."""
        return self._stored


class _Verbatim(email.message.EmailMessage):
    """A parsed mail that gives the text it was parsed from, not another rendering of it."""

    raw = ""

    def as_string(self, *args: Any, linesep: str = "\r\n", **kwargs: Any) -> str:
        return self.raw.replace("\r\n", linesep)

    def as_bytes(self, *args: Any, linesep: str = "\r\n", **kwargs: Any) -> bytes:
        return self.as_string(linesep=linesep).encode("ascii")


def _addresses(header: Any) -> tuple[Any, ...]:
    return header.addresses if header is not None else ()


def _text(part: Any) -> str:
    return str(part.get_content()).replace("\r\n", "\n")


def _listed(header: Any) -> list[str]:
    return [str(address) for address in _addresses(header)]
