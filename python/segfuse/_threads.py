"""The number of threads that calls use."""

from __future__ import annotations

from . import _native
from ._numbers import whole


def set_threads(threads: int) -> None:
    """Sets the number of `threads` that calls use, including calls of compiled functions.

    0 stands for the number of cores that this process may run on.

    Raises:
        UsageError: the number is negative.
    """
    _native.set_threads(whole("threads", threads))


def get_threads() -> int:
    """The number of threads that calls use."""
    return _native.get_threads()
