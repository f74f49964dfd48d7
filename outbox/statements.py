"""The SQL of this app: each statement in a file of sql/, named after what it does, with its reasons."""

import functools
from importlib import resources


@functools.cache
def statement(name: str) -> str:
    """The text of sql/<name>.sql."""
    return (resources.files("outbox") / "sql" / f"{name}.sql").read_text()
