"""Numbers from the command line, each refused with a sentence when it cannot be meant."""

import argparse
import math
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path


def whole(most: int) -> Callable[[str], int]:
    """Reads a whole number from 1 to `most`."""

    def read(text: str) -> int:
        number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0
        if not 1 <= number <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {most}")
        return number

    return read


def seconds(least: float) -> Callable[[str], timedelta]:
    """Reads a number of seconds, at least `least` and at most ten years."""
    return lambda text: timedelta(seconds=_number(text, least, 315_360_000, "seconds"))


def days(text: str) -> timedelta:
    """Reads a number of days, at least a minute and at most a hundred years."""
    return timedelta(days=_number(text, 0.001, 36_500, "days"))


def per_second(text: str) -> float:
    """Reads a rate."""
    return _number(text, 0.0001, 1_000_000, "messages per second")


def address(text: str) -> tuple[str, int]:
    """Reads HOST:PORT; port 0 is any that is free."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port[:6]) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, as in 127.0.0.1:9108")
    return host, int(port)


def file(text: str) -> Path:
    """Reads the name of a file that can be written, now or later."""
    path = Path(text)
    if not path.name or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a file")
    return path


def _number(text: str, least: float, most: float, unit: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of {unit} from {least:g} to {most:g}")
    return number
