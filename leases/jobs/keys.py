"""Keys of jobs, made from the arguments of a function."""

import inspect
import string
from collections.abc import Callable, Mapping, Set
from typing import Any

from leases.jobs.errors import InvalidKey
from leases.jobs.models import MAX_KEY_LENGTH


class KeyTemplate:
    """A template such as "welcome:{user_id}" over a function's parameters; different arguments give different keys.

    Separators that occur in a value are percent-escaped, so that "a:b" and "c" are not taken for "a" and "b:c". Of two
    jobs that share a key by mistake one would be lost, so what cannot be told apart is refused: None, and templates
    without a separator between two fields. One job that has two keys would run twice, so a mapping or a set is refused
    too: its text depends on the order in which it was filled.
    """

    def __init__(self, template: str, function: Callable[..., Any]) -> None:
        self.template = template
        self._signature = inspect.signature(function)
        self._parts = _parsed(template)
        require_parameters(template, function)
        for literal, field, _, _ in self._parts[1:]:
            if field is not None and (not literal or literal.isalnum()):
                raise ValueError(f"{template!r} needs a separator such as ':' between its fields")
        literals = "".join(part[0] for part in self._parts)
        self._separators = {character for character in literals if not character.isalnum()} | {"%"}

    def of(self, *args: Any, **kwargs: Any) -> str:
        """Return the key for a call with these arguments; raises InvalidKey, or TypeError as the call itself would."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        key = ""
        for literal, field, spec, conversion in self._parts:
            key += literal
            if field is None:
                continue
            try:
                key += self._escaped(self._text(field, spec or "", conversion, bound.arguments))
            except InvalidKey:
                raise
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                reason = f"{field} cannot be written into it ({type(error).__name__}: {error})"
                raise InvalidKey(self.template, reason=reason) from error
        return validated(key)

    def _text(self, field: str, spec: str, conversion: str | None, arguments: Mapping[str, Any]) -> str:
        formatter = string.Formatter()
        value, _ = formatter.get_field(field, (), arguments)
        if value is None:
            raise InvalidKey(self.template, reason=f"{field} is None, and all such jobs would share one key")
        if _has_no_order(value):
            raise InvalidKey(
                self.template,
                reason=f"{field} has items in no certain order, and one job would have two keys; name what tells jobs "
                f"apart, as in {{{field}[id]}}",
            )
        return format(formatter.convert_field(value, conversion or None), spec)

    def _escaped(self, text: str) -> str:
        return "".join("".join(f"%{byte:02X}" for byte in c.encode()) if c in self._separators else c for c in text)


def require_parameters(template: str, function: Callable[..., Any]) -> None:
    """Raise ValueError if the template names what is no parameter of the function."""
    parameters = inspect.signature(function).parameters
    for _, field, _, _ in _parsed(template):
        if field is not None and field.split(".")[0].split("[")[0] not in parameters:
            raise ValueError(f"{template!r} names {field!r}, which is no parameter of {function.__qualname__}")


def _parsed(template: str) -> list[tuple[str, str | None, str | None, str | None]]:
    """Parse a template into literals and the field that follows each; an escaped brace does not end a literal."""
    parts: list[tuple[str, str | None, str | None, str | None]] = []
    before = ""
    for literal, field, spec, conversion in string.Formatter().parse(template):
        before += literal
        if field is not None:
            parts.append((before, field, spec, conversion))
            before = ""
    return [*parts, (before, None, None, None)]


def _has_no_order(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(_has_no_order(item) for item in value)
    return isinstance(value, Mapping | Set)


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
