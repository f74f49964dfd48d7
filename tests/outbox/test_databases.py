"""Several databases: a message is in that of its caller's transaction, and is drained and decided there."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, connections, transaction

import outbox
from outbox.decisions import Action, decide
from outbox.errors import NotInTransaction
from outbox.models import Decision, Message, State

from .conftest import MAIL
from .smtp_server import MailServer

pytestmark = pytest.mark.django_db(transaction=True)


class KeepsNothingByDefault:
    """Whoever forgets to name a database ends at one that is not there."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return hints["instance"]._state.db if "instance" in hints else "nowhere"

    db_for_write = db_for_read


@pytest.fixture
def other(settings: Any) -> Iterator[str]:
    """Another alias, which leads to the same tables."""
    connections.databases["other"] = {**connection.settings_dict}
    connections["other"].connect()
    settings.DATABASE_ROUTERS = [f"{__name__}.{KeepsNothingByDefault.__name__}"]
    yield "other"
    connections["other"].close()
    del connections.databases["other"], connections["other"]


def test_message_lives_in_the_database_of_its_transaction(other: str, mail_server: MailServer) -> None:
    with transaction.atomic(), pytest.raises(NotInTransaction, match="other"):
        outbox.publish("email", MAIL, dedupe_key="k", using=other)
    with transaction.atomic(using=other):
        for key in ("sent", "cancelled", "doubtful"):
            message: Any = outbox.publish("email", MAIL, dedupe_key=key, using=other)
        assert not Message.objects.using("default").exists()
        assert outbox.publish("email", MAIL, dedupe_key="sent", using=other).id < message.id
        assert outbox.cancel("cancelled", using=other)
    Message.objects.using(other).filter(id=message.id).update(state=State.IN_DOUBT)
    decide(Action.ARRIVED, message.id, reason="r", by="eve", using=other)
    call_command("drain_outbox", "--database", other, "--until-empty")
    for verb in (["status"], ["show", "sent"], ["prune", "--older-than", "1"]):
        call_command("outbox", "--database", other, *verb)
    assert len(mail_server.received) == 1
    assert dict(Message.objects.using(other).values_list("dedupe_key", "state")) == {
        "sent": "sent",
        "cancelled": "cancelled",
        "doubtful": "sent",
    }
    assert Decision.objects.using(other).count() == 1
