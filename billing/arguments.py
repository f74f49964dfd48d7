"""Numbers, names and months on the command line: one sentence for what is none, before anything is begun."""

import argparse
import math
import re
from collections.abc import Callable

from billing.periods import InvalidPeriod, Period

MOST = 2**63 - 1
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)


def whole(least: int, most: int = MOST) -> Callable[[str], int]:
    """Return a reader of whole numbers from `least` to `most`, for `type=` of an argument."""

    def read(text: str) -> int:
        if not _WHOLE.fullmatch(text) or not least <= int(text) <= most:
            allowed = f"of at least {least}" if most == MOST else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"expected a whole number {allowed}, got {text!r}")
        return int(text)

    return read


def number(least: float, most: float) -> Callable[[str], float]:
    """Return a reader of finite numbers from `least` to `most`, for `type=` of an argument."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"expected a number from {least:g} to {most:g}, got {text!r}")
        return value

    return read


def name(text: str) -> str:
    """Read a name; what the shell gave as bytes that are no text names nothing."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"expected UTF-8 text, got {text!r}") from None
    return text


def month(text: str) -> Period:
    """Read a month such as `2026-05`."""
    try:
        if "/" not in text:
            return Period.parse(text)
    except InvalidPeriod:
        pass
    raise argparse.ArgumentTypeError(f"expected a month such as 2026-05, got {text!r}")


positive = whole(1)
port = whole(0, 65535)
seconds = number(0.001, 1_000_000)
