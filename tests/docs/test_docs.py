"""The documents against the code: what they name exists, and what a user can set or type is named."""

import argparse
import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.core.management import get_commands, load_command_class

import billing.conf
import leases.conf
import outbox.conf
from tests.docs.reading import ROOT, Document, document, documents, in_code_font

APPS = ("leases", "outbox", "billing", "project")
EVERY_DOCUMENT = pytest.mark.parametrize("doc", documents(), ids=str)

_TEST = re.compile(r"\btest_\w+\b")
_COMMAND = re.compile(r"manage\.py ([a-z_]+)((?: +[^\s`|#]+)*)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


# Links


@EVERY_DOCUMENT
def test_relative_links_and_their_anchors_resolve(doc: Document) -> None:
    broken = []
    for _, target in doc.links():
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        there = (doc.path.parent / path).resolve() if path else doc.path
        if not there.exists() or (anchor and anchor not in Document(there).anchors()):
            broken.append(target)
    assert not broken


# Tests


@EVERY_DOCUMENT
def test_every_test_that_is_named_exists_where_its_link_leads(doc: Document) -> None:
    known = {name for path in (ROOT / "tests").rglob("*.py") for name in names_of_tests(path.read_text())}
    missing = {name for name in _TEST.findall(doc.prose) if name not in known and not (ROOT / f"tests/{name}").exists()}
    missing = {name for name in missing if not list((ROOT / "tests").rglob(f"{name}.py"))}
    assert not missing
    for words, target in doc.links():
        for name in _TEST.findall(words):
            assert name in names_of_tests((doc.path.parent / target.partition("#")[0]).read_text()), (words, target)


def names_of_tests(source: str) -> set[str]:
    return set(re.findall(r"^\s*def (test_\w+)", source, re.MULTILINE))


# Code


@EVERY_DOCUMENT
def test_code_blocks_are_python_and_import_what_exists(doc: Document) -> None:
    for code in doc.blocks("python"):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] in APPS:
                        importlib.import_module(alias.name)
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in APPS:
                module = importlib.import_module(str(node.module))
                missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
                assert not missing, f"{node.module} has no {missing}"


@EVERY_DOCUMENT
def test_modules_that_are_named_exist(doc: Document) -> None:
    named = re.findall(rf"`((?:{'|'.join(APPS)})(?:\.[A-Za-z_]+)+)(?:\(\))?`", doc.prose)
    missing = [name for name in sorted(set(named)) if not exists(name) and name not in named_otherwise()]
    assert not missing


def exists(dotted: str) -> bool:
    parts = dotted.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for name in parts[split:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


def named_otherwise() -> set[str]:
    """Dotted names that are no modules: events of the log, ids of checks, permissions, the triggers' setting."""
    return events() | check_ids() | permissions() | {"leases.presented"}


def permissions() -> set[str]:
    """The permissions beyond Django's four per model: those of actions."""
    models = [model for app in ("leases", "outbox", "billing") for model in apps.get_app_config(app).get_models()]
    return {f"{model._meta.app_label}.{codename}" for model in models for codename, _ in model._meta.permissions}


def test_every_permission_of_an_action_is_in_the_table_and_no_other() -> None:
    assert {in_code_font(row[0]) for row in document("docs/operating.md").rows("The admin")} == permissions()


# Settings


@pytest.mark.parametrize(
    ("prefix", "defaults"),
    [
        ("LEASES_", leases.conf.Settings),
        ("OUTBOX_", outbox.conf.Settings),
        ("BILLING_", billing.conf.Settings),
    ],
)
def test_every_setting_is_in_its_table_with_its_default(prefix: str, defaults: type) -> None:
    rows = {in_code_font(row[0]): row[1] for row in document("docs/settings.md").rows(f"{prefix}*")}
    written = {
        name: eval(in_code_font(cell), {"timedelta": timedelta})  # noqa: S307  # our own documents
        for name, cell in rows.items()
    }
    assert written == {f"{prefix}{name}": value for name, value in vars(defaults).items() if name.isupper()}


def test_every_environment_variable_is_in_its_table() -> None:
    example = (ROOT / ".env.example").read_text()
    variables = set(re.findall(r"^#?([A-Z][A-Z0-9_]+)=", example, re.MULTILINE))
    assert {in_code_font(row[0]) for row in document("docs/settings.md").rows("Environment")} == variables


# Commands


def commands() -> dict[str, argparse.ArgumentParser]:
    return {
        name: load_command_class(app, name).create_parser("manage.py", name)
        for name, app in get_commands().items()
        if app in APPS
    }


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """The long options of a command and its verbs, without those of every command."""
    found: set[str] = set()
    for action in parser._actions:
        found |= {option for option in action.option_strings if option.startswith("--")}
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                found |= options_of(verb)
    usual = argparse.ArgumentParser()
    usual.add_argument("--version", "--verbosity", "--settings", "--pythonpath", "--traceback")
    return (
        found
        - {option for action in usual._actions for option in action.option_strings}
        - {
            "--no-color",
            "--force-color",
            "--skip-checks",
        }
    )


def verbs_of(parser: argparse.ArgumentParser) -> set[str]:
    verbs: set[str] = set()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            verbs |= set(action.choices)
    return verbs


def test_every_command_verb_and_option_is_documented_and_no_other() -> None:
    page = document("docs/commands.md")
    for name, parser in commands().items():
        section = page.section(name)
        assert set(_OPTION.findall(section)) == options_of(parser), name
        missing = [verb for verb in verbs_of(parser) if f"`{verb}" not in section and f"`{name} {verb}" not in section]
        assert not missing, name


@EVERY_DOCUMENT
def test_commands_are_typed_as_they_exist(doc: Document) -> None:
    ours = commands()
    for name, rest in _COMMAND.findall(doc.text):
        assert name in ours or name in get_commands() or name == "pgtrigger", name
        if name in ours:
            wrong = set(_OPTION.findall(rest)) - options_of(ours[name])
            assert not wrong, f"{name} {rest}"
            verbs = verbs_of(ours[name])
            words = [word for word in rest.split() if re.fullmatch(r"[a-z_-]+", word)]
            assert not verbs or not words or words[0] in verbs, f"{name} {rest}"


@EVERY_DOCUMENT
def test_make_targets_exist(doc: Document) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make ([a-z-]+)", doc.text, re.MULTILINE)) <= targets


def test_units_and_procfile_start_commands_that_exist() -> None:
    files = [ROOT / "Procfile", *sorted((ROOT / "deploy").glob("*.service"))]
    assert len(files) > 4
    ours = commands()
    started = [(file.name, *found) for file in files for found in _COMMAND.findall(file.read_text())]
    assert {name for _, name, _ in started} >= {"rundramatiq", "drain_outbox", "rescue"}
    for file, name, rest in started:
        assert set(_OPTION.findall(rest)) <= options_of(ours[name]), (file, name, rest)


# Checks, events


def sources() -> Iterator[str]:
    for app in APPS:
        for path in sorted((ROOT / app).rglob("*.py")):
            if "migrations" not in path.parts:
                yield path.read_text()


def check_ids() -> set[str]:
    return {
        found
        for source in sources()
        for found in re.findall(r'"((?:leases|outbox|billing|project)\.[EW]\d{3})"', source)
    }


def test_every_check_is_explained_and_no_other() -> None:
    ids = {in_code_font(row[0]) for row in document("docs/operating.md").rows("Checks")}
    assert ids == check_ids()


def events() -> set[str]:
    """The events of the log: literals after "event", or given to a function that writes them there."""
    found: set[str] = set()
    for source in sources():
        found |= set(re.findall(r'"event": (?:\()?"([a-z_.]+)"', source))
        found |= set(re.findall(r'\b(?:_?log|_log_step)\(\s*"([a-z_]+\.[a-z_]+)"', source))
        for line in re.findall(r'"event": (.*(?:if|else).*)', source):
            found |= set(re.findall(r'"([a-z_]+\.[a-z_]+)"', line))
    return found | {"outbox.dead", "outbox.in_doubt", "outbox.breaker_opened", "outbox.breaker_closed"}


def test_every_event_is_in_the_table_and_no_other() -> None:
    written = {in_code_font(row[0]) for row in document("docs/events.md").rows()}
    assert written == events()


def tagged_tests() -> Iterator[tuple[str, str]]:
    """The numbers that tests carry in a comment, each with its test."""
    for path in (ROOT / "tests").rglob("*.py"):
        name = ""
        for line in path.read_text().splitlines():
            if match := re.match(r"\s*def (test_\w+)", line):
                name = match[1]
            for log, numbers in re.findall(r"#.*?\b(locks|outbox) ((?:[A-EL]\d+[ ,]*)+)", line):
                for number in re.findall(r"L\d+" if log == "locks" else r"[A-E]\d+", numbers):
                    yield number, name


def test_every_test_of_a_public_bug_is_on_its_page() -> None:
    page = {row[0]: row[-1] for row in document("docs/public-bugs.md").rows()}
    missing = [(number, name) for number, name in tagged_tests() if f"[{name}]" not in page.get(number, "")]
    assert not missing


def test_every_public_bug_that_has_tests_is_named_by_one_of_them() -> None:
    tagged = set(tagged_tests())
    rows = {row[0]: re.findall(r"\[(test_\w+)\]", row[-1]) for row in document("docs/public-bugs.md").rows()}
    unnamed = [number for number, tests in rows.items() if tests and not {(number, test) for test in tests} & tagged]
    assert "L01" in rows
    assert not unnamed


def metrics() -> set[str]:
    found = set()
    for source in sources():
        for kind, name in re.findall(r'\b(Counter|Gauge|Histogram)\(\s*"([a-z_]+)"', source):
            found.add(f"{name}_total" if kind == "Counter" and not name.endswith("_total") else name)
        found |= set(re.findall(r'"(jobs_[a-z_]+)", "', source))
    return found


def test_every_metric_is_in_the_table_and_no_other() -> None:
    assert {in_code_font(row[0]) for row in document("docs/metrics.md").rows()} == metrics()


# Installing


def test_what_pip_installs_is_all_of_both_apps() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for app in ("leases", "outbox")
        for path in (ROOT / app).rglob("__init__.py")
    }
    assert set(tool["packages"]) == found
    for app in ("leases", "outbox"):
        packed = {path for pattern in tool["package-data"][app] for path in (ROOT / app).glob(pattern)}
        data = {path for path in (ROOT / app).rglob("*.*") if path.suffix not in (".py", ".pyc") and path.is_file()}
        assert data == packed
