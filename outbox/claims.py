"""The statements: what a drainer says to the database."""

import functools
from importlib import resources


@functools.cache
def statement(name: str) -> str:
    """The text of sql/<name>.sql."""
    return (resources.files("outbox") / "sql" / f"{name}.sql").read_text()
