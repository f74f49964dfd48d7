"""From the content of an email to the bytes that go over the wire, once, at publish."""

import base64
import binascii
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.header import Header
from email.headerregistry import Address, UnstructuredHeader
from email.message import EmailMessage
from email.policy import SMTP, EmailPolicy
from email.utils import format_datetime, make_msgid
from typing import Any, TypedDict

LONGEST_LINE = 998  # RFC 5322 2.1.1
LONGEST_WITH_ENCODED_WORDS = 76  # RFC 2047 2


class _Policy(EmailPolicy):
    """Folds free text as readers expect it: the library's own way makes encoded words of a long URL, which nobody
    decodes in List-Unsubscribe, and loses spaces between those of a long subject."""

    def fold_binary(self, name: str, value: Any) -> bytes:
        if not isinstance(value, UnstructuredHeader):
            return super().fold_binary(name, value)
        text = str(value)
        charset = "us-ascii" if text.isascii() else "utf-8"
        folded = Header(text, charset, LONGEST_WITH_ENCODED_WORDS, name).encode(linesep=self.linesep)
        if max(map(len, f"{name}: {folded}".split(self.linesep))) > LONGEST_LINE:
            raise ValueError(f"the header {name} has a word of more than {LONGEST_LINE} characters")
        return f"{name}: {folded}{self.linesep}".encode("ascii")


# Seven bits only, so that every server takes the mail as it is and nobody on the way has a reason to rewrite it.
POLICY = _Policy(cte_type="7bit", linesep=SMTP.linesep)
FIELDS = {"to", "cc", "bcc", "reply_to", "subject", "text", "html", "from", "headers", "attachments"}
HEADER_NAME = re.compile(r"[!-9;-~]+")  # RFC 5322 3.6.8; EmailMessage takes any text, also one with line ends
OURS = {"to", "cc", "bcc", "from", "subject", "reply-to", "message-id", "date", "mime-version"}
# IDNA 2003, which Python's codec speaks, makes ss and sigma of them: another domain, of another owner (UTS 46 7).
_IDNA_2003_MAPS = frozenset("ß\u1e9e\u03c2")


class Mail(TypedDict):
    """A rendered email, as it is stored: the envelope, and the text with its Message-ID and Date."""

    mail_from: str
    rcpt_tos: list[str]
    message_id: str
    raw: str


def render(content: Mapping[str, Any], *, default_from: str) -> Mail:
    """Render `content`; ValueError with one sentence says what is wrong with it.

    content: to (an address or a list of them), subject, text and/or html; optional cc, bcc, reply_to, from, headers
    {name: value}, attachments [{name, type, base64}]. Addresses may carry a display name.
    """
    unknown = set(content) - FIELDS
    if unknown:
        raise ValueError(f"unknown fields {', '.join(sorted(unknown))}")
    sender = one_address("from", content.get("from", default_from))
    addressed = {name: _addresses(name, content.get(name, [])) for name in ("to", "cc", "bcc", "reply_to")}
    recipients = addressed["to"] + addressed["cc"] + addressed["bcc"]
    if not recipients:
        raise ValueError("there is no recipient")

    mail = EmailMessage(policy=POLICY)
    mail["From"] = sender
    for name in ("to", "cc", "reply_to"):
        if addressed[name]:
            mail[name.replace("_", "-").title()] = addressed[name]
    mail["Subject"] = _text("subject", content.get("subject"))
    mail["Date"] = format_datetime(datetime.now(UTC))
    mail["Message-ID"] = message_id = make_msgid(domain=sender.domain)
    for name, value in _mapping("headers", content.get("headers", {})).items():
        if not HEADER_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a header")
        if name.lower() in OURS or name.lower().startswith("content-"):
            raise ValueError(f"the header {name} is made from the other fields")
        mail[name] = _text(f"header {name}", value)
    _add_bodies(mail, content)
    for number, attachment in enumerate(content.get("attachments", [])):
        _attach(mail, number, _mapping(f"attachments[{number}]", attachment))
    return {
        "mail_from": sender.addr_spec,
        "rcpt_tos": list(dict.fromkeys(address.addr_spec for address in recipients)),
        "message_id": message_id,
        "raw": mail.as_bytes().decode("ascii"),
    }


def _add_bodies(mail: EmailMessage, content: Mapping[str, Any]) -> None:
    text, html = content.get("text"), content.get("html")
    if text is None and html is None:
        raise ValueError("it has neither text nor html")
    if text is not None:
        mail.set_content(_text("text", text))
    if html is not None:
        add = mail.set_content if text is None else mail.add_alternative
        add(_text("html", html), subtype="html")


def _attach(mail: EmailMessage, number: int, attachment: Mapping[str, Any]) -> None:
    missing = {"name", "type", "base64"} - set(attachment)
    if missing:
        raise ValueError(f"attachments[{number}] has no {', '.join(sorted(missing))}")
    try:
        data = base64.b64decode(attachment["base64"], validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise ValueError(f"attachments[{number}] is not base64: {error}") from None
    maintype, _, subtype = _text(f"type of attachments[{number}]", attachment["type"]).partition("/")
    if not maintype or not subtype:
        raise ValueError(f"attachments[{number}] has the type {attachment['type']!r}, not one like 'application/pdf'")
    if maintype.lower() in ("multipart", "message"):
        raise ValueError(f"attachments[{number}] has the type {attachment['type']!r}, which is a mail and no file")
    name = _text(f"name of attachments[{number}]", attachment["name"])
    mail.add_attachment(data, maintype=maintype, subtype=subtype, filename=name)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}, not text")
    return value


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} is {value!r}, not an object")
    return value


def _addresses(name: str, value: Any) -> list[Address]:
    values = value if isinstance(value, list) else [value]
    return [one_address(name, one) for one in values]


def one_address(name: str, value: Any) -> Address:
    """Return the one address that `value` is, with its domain in ASCII; ValueError says what is wrong with it."""
    header = POLICY.header_factory("To", _text(name, value))
    address = header.addresses[0] if len(header.addresses) == 1 else None
    if address and not address.username.isascii():
        raise ValueError(f"{name} is {value!r}, and not every mail server takes letters beyond ASCII before the @")
    # Line separators and zero-width letters are dropped silently on the way, which makes it another address.
    bent = len(value.splitlines()) != 1 or not (address and address.domain.isprintable())
    if bent or header.defects or not address or not address.username or not address.domain:
        raise ValueError(f"{name} is {value!r}, not one email address")
    if different := _IDNA_2003_MAPS.intersection(address.domain):
        raise ValueError(
            f"{name} is {value!r}, and what {''.join(sorted(different))!r} stands for in a domain differs between "
            f"two standards; write the domain in ASCII, as in xn--strae-oqa.de"
        )
    try:
        domain = address.domain.encode("idna").decode("ascii")
    except UnicodeError as error:
        raise ValueError(f"{name} is {value!r}, whose domain cannot exist: {error}") from None
    if len(address.username) > 64 or len(domain) > 255:
        raise ValueError(f"{name} is {value[:50]!r}…, which is longer than an address may be (RFC 5321 4.5.3.1)")
    return Address(address.display_name, address.username, domain)
