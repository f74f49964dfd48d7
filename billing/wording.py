"""Numbers of things, as people read them."""


def counted(count: int, noun: str) -> str:
    """Return the count with its noun, in the plural unless there is one: `1 invoice`, `2 invoices`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
