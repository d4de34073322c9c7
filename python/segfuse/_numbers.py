"""Plain numbers and texts among the arguments."""

from __future__ import annotations

import operator
from typing import Any

from ._errors import UsageError

MOST_64 = (1 << 63) - 1
MOST_SEED = (1 << 64) - 1


def whole(name: str, value: Any, least: int = -MOST_64, most: int = MOST_64) -> int:
    """The value as an int, which it has to be; NumPy's integers are."""
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{name} is {value!r}, expected an integer") from None
    if least <= number <= most:
        return number
    if most == MOST_64 and number < least:
        raise UsageError(f"{name} is {number}, expected an integer of at least {least}")
    raise UsageError(f"{name} is {number}, expected an integer from {least} to {most}")


def text_of(name: str, value: Any) -> str:
    """The value, which has to be a text that UTF-8 can have: half of a surrogate pair is none."""
    if not isinstance(value, str):
        raise UsageError(f"{name} is {value!r}, expected a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name} is {value!r}, expected a text in UTF-8") from None
    return value


def seed_of(value: Any) -> int:
    return whole("seed", value, 0, MOST_SEED)


def real(name: str, value: Any) -> float:
    """The value as a float, which it has to be or become."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{name} is {value!r}, expected a number") from None
    except OverflowError:
        raise UsageError(f"{name} is beyond the numbers that float64 has") from None
