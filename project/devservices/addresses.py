"""Where the development servers of a checkout listen: written by `up`, read by the settings."""

import json
from pathlib import Path

FILE_NAME = "addresses.json"


def read_addresses(local: Path) -> dict[str, str]:
    """Return the addresses that `up` wrote, as environment variables; empty when it never ran here.

    Nothing is started, and nobody looks whether the servers run: a server keeps its port while it is down.
    """
    try:
        addresses = json.loads((local / FILE_NAME).read_text())
    except (FileNotFoundError, PermissionError, json.JSONDecodeError):
        return {}
    return {str(name): str(url) for name, url in addresses.items()}


def write_addresses(local: Path, addresses: dict[str, str]) -> None:
    """Keep `addresses` for the settings of this checkout; a reader sees the old ones or the new ones."""
    draft = local / f"{FILE_NAME}.new"
    draft.write_text(json.dumps(addresses, indent=2) + "\n")
    draft.replace(local / FILE_NAME)
