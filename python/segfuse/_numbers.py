"""Numbers, strings and paths among the arguments; arrays that mean more than their elements."""

from __future__ import annotations

import operator
import os
from typing import Any

import numpy as np

from ._errors import UsageError

MAX_64 = (1 << 63) - 1
MAX_SEED = (1 << 64) - 1


def whole(name: str, value: Any, least: int = -MAX_64, most: int = MAX_64) -> int:
    """The value as an int, which it has to be; NumPy's integers are."""
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{name} is {value!r}, expected an integer") from None
    if least <= number <= most:
        return number
    if most == MAX_64 and number < least:
        raise UsageError(f"{name} is {number}, expected an integer of at least {least}")
    raise UsageError(f"{name} is {number}, expected an integer from {least} to {most}")


def text_of(name: str, value: Any) -> str:
    """The value, which has to be a text that UTF-8 can have: half of a surrogate pair is none."""
    if not isinstance(value, str):
        raise UsageError(f"{name} is {value!r}, expected a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name} is {value!r}, expected a string that UTF-8 can encode") from None
    return value


def path_of(name: str, value: Any) -> str:
    """The value, which has to be a path that the system can have."""
    try:
        path = os.fsdecode(value)
    except TypeError:
        raise UsageError(f"{name} is {value!r}, expected a path") from None
    if "\0" in path:
        raise UsageError(f"{name} is {path!r}, expected a path without a NUL character")
    return path


def need_plain(name: str, value: Any) -> None:
    """UsageError for masked arrays and matrices of NumPy: their mask, or that * is the product of
    matrices, would get lost in silence."""
    if isinstance(value, np.ma.MaskedArray):
        raise UsageError(
            f"{name} is a masked array, expected an array without a mask; pass x.filled(number), "
            "and the mask as an array"
        )
    if isinstance(value, np.matrix):
        raise UsageError(
            f"{name} is a numpy.matrix, expected an array; pass numpy.asarray(x), and write @ for "
            "products"
        )


def seed_of(value: Any) -> int:
    return whole("seed", value, 0, MAX_SEED)


def real(name: str, value: Any) -> float:
    """The value as a float, which it has to be or become."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{name} is {value!r}, expected a number") from None
    except OverflowError:
        raise UsageError(f"{name} is outside the range of float64") from None
