"""Hands over a mail and a webhook where the name server answers nothing, and prints what became of each.

Run under `unshare --map-root-user --mount --net`: the files of the resolver and the network are this program's own. A
look-up takes the system 90 s here.
"""

import fcntl
import json
import socket
import struct
import subprocess
import sys
import tempfile
import threading

SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def isolate() -> socket.socket:
    """A name server that reads no question, and a resolver that asks it for a long time."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP))
    files = {
        "/etc/resolv.conf": "nameserver 127.0.0.1\noptions timeout:30 attempts:3\n",
        "/etc/nsswitch.conf": "hosts: files dns\n",
    }
    for path, text in files.items():
        with tempfile.NamedTemporaryFile("w", delete=False) as file:
            file.write(text)
        subprocess.run(["mount", "--bind", file.name, path], check=True)
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))
    return server


def main() -> None:
    server = isolate()
    import django
    from django.conf import settings

    webhook = {"receivers": {"crm": {"url": "https://crm.example.org/", "secrets": ["whsec_" + "c2VjcmV0" * 4]}}}
    settings.configure(
        EMAIL_HOST="mail.example.org",
        EMAIL_TIMEOUT=0.3,
        OUTBOX_CHANNELS={
            "email": {"BACKEND": "outbox.channels.email.EmailChannel"},
            "hook": {
                "BACKEND": "outbox.channels.webhook.WebhookChannel",
                "OPTIONS": {**webhook, "timeout_seconds": 0.3},
            },
        },
    )
    django.setup()
    from outbox import channels
    from outbox.channels.base import Deadline, Parcel

    mail = {"mail_from": "b@example.com", "rcpt_tos": ["a@example.org"], "raw": "Subject: s\r\n\r\nt\r\n"}
    payloads = {"email": mail, "hook": {"receiver": "crm", "id": "m", "body": "{}"}}
    for name, payload in payloads.items():
        for attempt in range(3):
            answer = channels.channel(name).send(Parcel(1, name, "k", payload, attempt, Deadline.after(30)))
            print(json.dumps([name, answer.outcome.value, answer.unreachable, answer.detail]))
    print(json.dumps([thread.name for thread in threading.enumerate()]), flush=True)
    server.close()
    # Not waiting for the look-ups, which nobody can end.
    sys.exit(0)


if __name__ == "__main__":
    main()
