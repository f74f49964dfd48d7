import json
import signal
import smtplib
from pathlib import Path
from typing import Any

import pytest

from tests.simulators.conftest import Start

MAIL = "Subject: hello\r\nMessage-ID: <1@example.org>\r\n\r\nbody\r\n"


def send(port: int, *recipients: str, timeout: float = 10) -> None:
    with smtplib.SMTP("127.0.0.1", port, timeout=timeout) as client:
        client.sendmail("billing@example.org", recipients or ("a@example.org",), MAIL)


def recorded(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_envelope_is_recorded_as_sent(simulator: Start, tmp_path: Path) -> None:
    _, port = simulator("mailserver", "--record", str(tmp_path / "r"))
    send(port, "a@example.org", "b@example.org")
    (entry,) = recorded(tmp_path / "r")
    assert entry["mail_from"] == "billing@example.org"
    assert entry["rcpt_tos"] == ["a@example.org", "b@example.org"]
    assert entry["message_id"] == "<1@example.org>"
    assert entry["answered"] is True
    assert len(entry["digest"]) == 64


@pytest.mark.parametrize(
    ("mode", "error", "kept"),
    [
        ("drop_at_mail", smtplib.SMTPServerDisconnected, 0),
        ("drop_after_dot", smtplib.SMTPServerDisconnected, 1),
        ("hang_after_dot", smtplib.SMTPServerDisconnected, 1),
        ("tempfail", smtplib.SMTPDataError, 0),
        ("permfail", smtplib.SMTPDataError, 0),
    ],
)
def test_the_record_says_whether_the_server_has_a_mail_whose_sending_failed(
    simulator: Start, tmp_path: Path, mode: str, error: type[Exception], kept: int
) -> None:
    _, port = simulator("mailserver", "--record", str(tmp_path / "r"), "--mode", mode)
    with pytest.raises(error):
        send(port, timeout=1)
    entries = recorded(tmp_path / "r")
    assert len(entries) == kept
    assert not any(entry["answered"] for entry in entries)


def test_the_mail_is_accepted_before_the_connection_breaks_at_quit(simulator: Start, tmp_path: Path) -> None:
    _, port = simulator("mailserver", "--record", str(tmp_path / "r"), "--mode", "drop_at_quit")
    client = smtplib.SMTP("127.0.0.1", port, timeout=10)
    assert client.sendmail("billing@example.org", ["a@example.org"], MAIL) == {}
    with pytest.raises(smtplib.SMTPServerDisconnected):
        client.quit()
    assert recorded(tmp_path / "r")[0]["answered"] is True


def test_one_of_two_recipients_is_refused(simulator: Start, tmp_path: Path) -> None:
    _, port = simulator("mailserver", "--record", str(tmp_path / "r"), "--mode", "refuse_one")
    with smtplib.SMTP("127.0.0.1", port, timeout=10) as client:
        for _ in range(2):
            refused = client.sendmail("billing@example.org", ["a@example.org", "b@example.org"], MAIL)
            assert list(refused) == ["a@example.org"]
    assert [entry["rcpt_tos"] for entry in recorded(tmp_path / "r")] == [["b@example.org"]] * 2


def test_a_script_gives_the_nth_mail_the_nth_mode_and_a_recipient_its_own(simulator: Start, tmp_path: Path) -> None:
    _, port = simulator(
        "mailserver",
        *("--record", str(tmp_path / "r")),
        *("--mode", "tempfail,accept"),
        *("--recipient-mode", "odd@example.org=drop_at_mail,accept"),
    )
    with pytest.raises(smtplib.SMTPDataError):
        send(port)
    send(port)
    with pytest.raises(smtplib.SMTPServerDisconnected):
        send(port, "odd@example.org")
    send(port, "odd@example.org")
    assert [entry["rcpt_tos"] for entry in recorded(tmp_path / "r")] == [["a@example.org"], ["odd@example.org"]]


def test_sigterm_ends_it_cleanly_with_a_sender_still_connected(simulator: Start, tmp_path: Path) -> None:
    process, port = simulator("mailserver", "--record", str(tmp_path / "r"))
    with smtplib.SMTP("127.0.0.1", port, timeout=10) as client:
        client.noop()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
    send_error = pytest.raises(OSError, match="refused")
    with send_error:
        send(port)
