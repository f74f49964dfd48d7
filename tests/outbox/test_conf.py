"""The app's settings: kept once they were read, and never what they were before a change."""

from typing import Any

import pytest
from django.conf import LazySettings
from django.test import override_settings

from outbox import conf


def test_setting_that_changes_while_a_thread_reads_it_is_not_kept_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    change = override_settings(OUTBOX_CLAIM_TTL="new")
    changes = [change]

    def change_once_read(of: object, *arguments: Any) -> Any:
        value = getattr(of, *arguments)
        if changes and isinstance(of, LazySettings):
            changes.pop().enable()
        return value

    vars(conf.settings).pop("CLAIM_TTL", None)
    monkeypatch.setattr(conf, "getattr", change_once_read, raising=False)
    try:
        assert conf.settings.CLAIM_TTL  # of before or after
        assert not changes
        assert conf.settings.CLAIM_TTL == "new"
    finally:
        change.disable()
    assert conf.settings.CLAIM_TTL != "new"
