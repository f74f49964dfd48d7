"""Keys: the same job has the same key wherever it is enqueued, another job another, and no key is a named error."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker

from leases import leased, once, reopen
from leases.jobs.errors import InvalidKey
from leases.jobs.keys import KeyTemplate


def job(x: Any = None, y: Any = None, *more: Any, **others: Any) -> None: ...


@pytest.mark.parametrize(
    ("template", "values"),
    [
        ("a:{x}", {"x": {"b": 1, "a": 2}}),
        ("a:{x!r}", {"x": {"b": 1}}),
        ("a:{x}", {"x": [{"b": 1}]}),
        ("a:{x}", {"x": {"b", "a"}}),
        ("a:{others}", {"b": 1, "a": 2}),
    ],
)
def test_two_messages_of_one_job_whose_arguments_came_in_another_order_get_no_two_keys(
    template: str, values: dict[str, Any]
) -> None:
    with pytest.raises(InvalidKey, match="order"):
        KeyTemplate(template, job).of(**values)


def test_items_of_a_mapping_are_named_in_the_key() -> None:
    assert KeyTemplate("a:{x[id]}:{others[tag]}:{y}", job).of({"id": 7}, [1, 2], tag="b") == "a:7:b:[1, 2]"


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("a:{x.id}", 1),
        ("a:{x[0]}", []),
        ("a:{x[id]}", {}),
        ("a:{x[id]}", 1),
        ("a:{x:d}", "text"),
        ("a\ud800:{x}", "\ud800"),
    ],
)
def test_arguments_that_do_not_fit_the_template_are_refused_by_name(template: str, value: Any) -> None:
    with pytest.raises(InvalidKey):
        KeyTemplate(template, job).of(value)


def test_escaped_braces_are_separators() -> None:
    assert KeyTemplate("a{{{x}}}:{y}", job).of("}", 1) == "a{%7D}:1"
    assert KeyTemplate("a{x}}}{y}", job).of(1, 2) == "a1}2"
    with pytest.raises(ValueError, match="separator"):
        KeyTemplate("a{{{x}{y}}}", job)


@pytest.mark.parametrize("decorate", [once("a:{x}"), once("a:{x}", on_crash="park"), leased("a:{x}")])
def test_decorator_above_the_actor_is_refused_when_the_module_is_imported(decorate: Callable[..., Any]) -> None:
    actor = dramatiq.actor(broker=StubBroker(middleware=[]))(job)
    with pytest.raises(TypeError, match=r"under @dramatiq\.actor"):
        decorate(actor)


@pytest.mark.parametrize("on_crash", [None, "park"])
def test_once_above_leased_is_refused_when_the_module_is_imported(on_crash: Any) -> None:
    with pytest.raises(TypeError, match="under @leased"):
        once("a:{x}", on_crash=on_crash, retention=timedelta(days=1))(leased("a:{x}")(job))


def test_name_that_no_receipt_can_keep_is_refused_when_the_module_is_imported() -> None:
    with pytest.raises(ValueError, match="255"):
        once("a:{x}", name="n" * 256)(job)


@pytest.mark.django_db(transaction=True)
def test_reopening_that_no_record_can_keep_is_refused() -> None:
    once("a:{x}")(job)(1)
    with pytest.raises(ValueError, match="255"):
        reopen("a:1", by="b" * 256, reason="why")
    with pytest.raises(ValueError, match="NUL"):
        reopen("a:1", by="ada", reason="why\0")
    with pytest.raises(ValueError, match="NUL"):
        reopen("a:1", by="ada\0", reason="why")
    with pytest.raises(InvalidKey, match="NUL"):
        reopen("a:1\0", by="ada", reason="why")
    assert reopen("a:1", by="b" * 255, reason="why").pk
