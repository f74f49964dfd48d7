"""The SQL of this app: each statement in a file of sql/, named after what it does, with its reasons."""

import functools
from importlib import resources


@functools.cache
def statement(name: str) -> str:
    """The text of sql/<name>.sql, with only the first line of its comments.

    That one names it in pg_stat_activity, which shows the first 1024 bytes of a statement.
    """
    first, *others = (resources.files("outbox") / "sql" / f"{name}.sql").read_text().splitlines(keepends=True)
    return first + "".join(line for line in others if not line.startswith("--"))
