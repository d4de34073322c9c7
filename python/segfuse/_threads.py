"""How many threads calls use."""

from __future__ import annotations

from . import _native
from ._numbers import whole


def set_threads(threads: int) -> None:
    """Sets the number of `threads` that calls use, those of compiled functions too.

    0 takes the cores this process may run on.

    Raises:
        UsageError: a negative number.
    """
    _native.set_threads(whole("threads", threads))


def get_threads() -> int:
    """The number of threads that calls use."""
    return _native.get_threads()
