"""What `manage.py outbox status` says of what is unfinished."""

from contextlib import suppress
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import transaction
from django.utils import timezone

from outbox import forgetting, publish

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("state", "said"),
    [("due", "oldest due for"), ("in doubt", "oldest in doubt for"), ("later", "1 later"), ("none", "nothing is")],
)
def test_status_speaks_of_what_there_is_and_of_nothing_else(
    state: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {"to": "a@example.org", "subject": "s", "text": "t"}
    later = timezone.now() + timedelta(days=1) if state == "later" else None
    with transaction.atomic():
        if state != "none":
            publish("email", content, dedupe_key="k", not_before=later)
    if state == "in doubt":
        forgetting.put_right("default")
    with suppress(SystemExit):  # what waits for a person has an exit code of its own
        call_command("outbox", "status")
    assert said in capsys.readouterr().out
