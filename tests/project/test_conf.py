"""Each app's settings: kept once they were read, and never what they were before a change."""

from types import ModuleType
from typing import Any

import pytest
from django.conf import LazySettings
from django.test import override_settings

import billing.conf
import leases.conf
import outbox.conf


@pytest.mark.parametrize(
    ("module", "conf", "name", "setting"),
    [
        (billing.conf, billing.conf.conf, "LEASE_TTL", "BILLING_LEASE_TTL"),
        (leases.conf, leases.conf.conf, "TTL", "LEASES_TTL"),
        (outbox.conf, outbox.conf.settings, "CLAIM_TTL", "OUTBOX_CLAIM_TTL"),
    ],
)
def test_setting_that_changes_while_a_thread_reads_it_is_not_kept_as_it_was(
    module: ModuleType, conf: Any, name: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [override_settings(**{setting: "new"})]

    def change_once_read(of: object, *arguments: Any) -> Any:
        value = getattr(of, *arguments)
        if changes and isinstance(of, LazySettings):
            changes.pop().enable()
        return value

    change = changes[0]
    vars(conf).pop(name, None)
    monkeypatch.setattr(module, "getattr", change_once_read, raising=False)
    try:
        getattr(conf, name)  # of before or after
        assert not changes
        assert getattr(conf, name) == "new"
    finally:
        change.disable()
    assert getattr(conf, name) != "new"
