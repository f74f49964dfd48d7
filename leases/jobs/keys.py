"""Keys of jobs, made from the arguments of a function."""

import inspect
import string
from collections.abc import Callable
from typing import Any

from leases.jobs.errors import InvalidKey
from leases.jobs.models import MAX_KEY_LENGTH


class KeyTemplate:
    """A template such as "welcome:{user_id}" over a function's parameters; different arguments give different keys.

    Separators that occur in a value are percent-escaped, so that "a:b" and "c" are not taken for "a" and "b:c". Of two
    jobs that share a key by mistake one would be lost, so what cannot be told apart is refused: None, and templates
    without a separator between two fields.
    """

    def __init__(self, template: str, function: Callable[..., Any]) -> None:
        self.template = template
        self._signature = inspect.signature(function)
        self._parts = list(string.Formatter().parse(template))
        fields = [field for _, field, _, _ in self._parts if field is not None]
        for field in fields:
            if field.split(".")[0].split("[")[0] not in self._signature.parameters:
                raise ValueError(f"{template!r} names {field!r}, which is no parameter of {function.__qualname__}")
        for literal, name, _, _ in self._parts[1:]:
            if name is not None and (not literal or literal.isalnum()):
                raise ValueError(f"{template!r} needs a separator such as ':' between its fields")
        literals = "".join(part[0] for part in self._parts)
        self._separators = {character for character in literals if not character.isalnum()} | {"%"}

    def of(self, *args: Any, **kwargs: Any) -> str:
        """Return the key for a call with these arguments; raises InvalidKey, or TypeError as the call itself would."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        formatter = string.Formatter()
        key = ""
        for literal, field, spec, conversion in self._parts:
            key += literal
            if field is None:
                continue
            value, _ = formatter.get_field(field, (), bound.arguments)
            if value is None:
                raise InvalidKey(self.template, reason=f"{field} is None, and all such jobs would share one key")
            value = formatter.convert_field(value, conversion or None)
            key += self._escaped(format(value, spec or ""))
        return validated(key)

    def _escaped(self, text: str) -> str:
        return "".join("".join(f"%{byte:02X}" for byte in c.encode()) if c in self._separators else c for c in text)


def validated(key: str) -> str:
    """Return `key` if PostgreSQL can keep it, else raise InvalidKey."""
    if not 0 < len(key) <= MAX_KEY_LENGTH:
        raise InvalidKey(key, reason=f"it has {len(key)} characters, 1 to {MAX_KEY_LENGTH} are allowed")
    if "\x00" in key:
        raise InvalidKey(key, reason="it contains the NUL character")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InvalidKey(key, reason="it contains half a surrogate pair") from None
    return key
