"""Plain numbers among the arguments."""

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
