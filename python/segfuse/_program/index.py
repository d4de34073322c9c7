"""x[...] of a value."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from .. import _arrays
from .._errors import UsageError
from .lift import make, new_axis, part, shape_text, value
from .sizes import Size, native_size
from .value import Value


def index(x: Value, key: Any) -> Value:
    """NumPy's basic indexing, and one array of integers at one place."""
    keys = _full_keys(x, key if isinstance(key, tuple) else (key,))
    axis = 0
    for item in keys:
        if item is None:
            x = new_axis(x, axis)
            axis += 1
        elif isinstance(item, slice):
            x = _sliced(x, axis, item)
            axis += 1
        elif _is_whole(item):
            x = _picked(x, axis, item)
        else:
            indices = value("indexing", item, x)
            if indices.dtype not in ("int32", "int64"):
                raise UsageError(
                    f"indexing: found an index {indices!r}, expected integers; a shape that "
                    "depends on content is not possible, use sf.where"
                )
            x = make("take", [x, indices], axis)
            axis += indices.ndim
    return x


def _spans(key: Any) -> bool:
    return key is None or key is Ellipsis or isinstance(key, slice)


def _is_whole(item: Any) -> bool:
    return isinstance(item, (int, np.integer, Size)) and not isinstance(item, bool)


def _full_keys(x: Value, keys: tuple[Any, ...]) -> list[Any]:
    """The keys with Ellipsis written out."""
    places = [i for i, key in enumerate(keys) if key is Ellipsis]
    if len(places) > 1:
        raise UsageError("indexing: found two Ellipsis, expected one at most")
    picks = [i for i, key in enumerate(keys) if not _spans(key)]
    arrays = [i for i in picks if not _is_whole(keys[i])]
    for i in arrays:
        if isinstance(keys[i], (bool, str, float)):
            raise UsageError(
                f"indexing: found {keys[i]!r}, expected integers, slices, None or Ellipsis"
            )
    if len(arrays) > 1:
        raise UsageError("indexing: found two arrays of indices, expected one; use sf.take twice")
    if arrays and picks[-1] - picks[0] >= len(picks):  # NumPy moves axes then
        raise UsageError(
            "indexing: found an integer apart from an array of indices, expected them side by "
            "side; index twice"
        )
    used = sum(key is not None and key is not Ellipsis for key in keys)
    if used > x.ndim:
        raise UsageError(f"indexing: found {used} indices for {x!r}, which has {x.ndim} axes")
    rest = [slice(None)] * (x.ndim - used)
    at = places[0] if places else len(keys)
    return [*keys[:at], *rest, *keys[at + 1 :]]


def _picked(x: Value, axis: int, item: Any) -> Value:
    size = x.shape[axis]
    item = item if isinstance(item, Size) else operator.index(item)
    negative = isinstance(item, int) and item < 0
    at = size + item if negative else item
    fusion = x._fusion
    if not (fusion._known(">=", at, 0, True) and fusion._known("<", at, size, True)):
        raise UsageError(
            f"indexing: index {item} is out of range for axis {axis} of shape "
            f"{shape_text(fusion, x.shape)}"
        )
    return make("squeeze", [part(x, axis, at, 1)], [axis])


def _bound(x: Value, bound: Any, size: Any, default: Any) -> Any:
    """A bound of a slice within [0, size], as NumPy takes it."""
    if bound is None:
        return default
    if not _is_whole(bound):
        raise UsageError(
            f"indexing: found {_arrays.describe(bound)} in a slice, expected an integer"
        )
    bound = bound if isinstance(bound, Size) else operator.index(bound)
    known = x._fusion._known
    if isinstance(bound, int) and bound < 0:
        bound = size + bound
        if not known(">=", bound, 0, True):
            return 0
    elif not known("<=", bound, size, True):
        return size
    return bound


def _sliced(x: Value, axis: int, item: slice) -> Value:
    size = x.shape[axis]
    step = 1 if item.step is None else operator.index(item.step)
    if step == 0:
        raise UsageError("indexing: found a slice with step 0, expected another step")
    if item.start is None and item.stop is None and step == 1:
        return x
    if step < 0:
        return _backward(x, axis, item, size, step)
    start = _bound(x, item.start, size, 0)
    stop = _bound(x, item.stop, size, size)
    length = stop - start
    if not x._fusion._known(">=", length, 0, True):
        length = 0
    x = part(x, axis, start, length)
    if step == 1:
        return x
    if not x._fusion._known(">=", length, 1, True):
        return x
    return make("squeeze", [make("unfold", [x], axis, 1, step, 1)], [axis + 1])


def _backward(x: Value, axis: int, item: slice, size: Any, step: int) -> Value:
    if item.start is not None or item.stop is not None:
        raise UsageError(
            "indexing: found a negative step with bounds, expected x[::-k]; take x[a:b] first"
        )
    fusion = x._fusion
    indices = Value(fusion, fusion._native.iota(native_size(size), "int64"))
    turned = make(
        "take", [x, size - (indices + 1)], axis
    )  # size - 1 is no size where there is nothing
    return turned if step == -1 else _sliced(turned, axis, slice(None, None, -step))
