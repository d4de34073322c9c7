"""x[...] of a value."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from .. import _arrays
from .._errors import UsageError
from .lift import as_value, make, new_axis, part, shape_text, value
from .sizes import Size, native_size
from .value import Value, functions


def index(x: Value, key: Any) -> Value:
    """NumPy's indexing with integers, slices, None, Ellipsis and arrays of integers."""
    given = key if isinstance(key, tuple) else (key,)
    keys = _full_keys(x, given)
    if sum(not _spans(k) and not _is_whole(k) for k in keys) > 1:
        return _by_arrays(x, keys, _are_apart(given))
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
            indices = from_the_end(_indices(x, item), x.shape[axis], item)
            x = make("take", [x, indices], axis)
            axis += indices.ndim
    return x


def from_the_end(indices: Value, size: Any, given: Any) -> Value:
    """Indices of an axis of `size` counted from 0, where those below 0 count from its end. One that
    is out of range stays as it is, so that the run names it. `given` is what the caller wrote."""
    if isinstance(given, (np.ndarray, list, tuple)) and np.min(given, initial=0) >= 0:
        return indices
    at = functions["astype"](indices, "int64")
    counted = at + size
    return functions["where"]((at < 0) & (counted >= 0), counted, at)


def _indices(x: Value, item: Any) -> Value:
    if isinstance(item, list) and np.size(item) == 0:
        item = np.zeros(np.shape(item), np.int64)  # as in NumPy, although np.asarray([]) is float
    indices = value("indexing", item, x)
    if indices.dtype not in ("int32", "int64"):
        raise UsageError(
            f"indexing: found an index {indices!r}, expected integers; a shape cannot depend on "
            "the content of arrays; use sf.where"
        )
    return indices


def _by_arrays(x: Value, keys: list[Any], apart: bool) -> Value:
    """Several arrays of indices, which broadcast. Integers among them count as such. Their axes are
    where the first one was, or come first if the key has them apart."""
    arrays: list[Value] = []
    axes: list[int] = []
    for axis, item in enumerate(keys):
        if item is None:
            x = new_axis(x, axis)
        elif isinstance(item, slice):
            x = _sliced(x, axis, item)
        else:
            whole = _is_whole(item)
            if whole:
                item = as_value(x._fusion, _within(x, axis, item), "int64")
            arrays.append(item if whole else functions["astype"](_indices(x, item), "int64"))
            axes.append(axis)
    first = 0 if apart else axes[0]
    others = [a for a in range(x.ndim) if a not in axes]
    before, after = others[:first], others[first:]
    x = make("permute", [x], [*before, *axes, *after])
    sizes = x.shape[first : first + len(axes)]
    return make("take", [_merged(x, first, sizes), _row_major(arrays, sizes)], first)


def _row_major(arrays: list[Value], sizes: tuple[Any, ...]) -> Value:
    """The position that the indices name together; -1, which no run takes, where one is wrong."""
    linear: Any = 0
    inside: Any = True
    for at, size in zip(arrays, sizes, strict=True):
        at = functions["where"](at < 0, at + size, at)
        inside = functions["logical_and"](inside, (at >= 0) & (at < size))
        linear = at + linear * size
    return functions["where"](inside, linear, -1)


def _merged(x: Value, first: int, sizes: tuple[Any, ...]) -> Value:
    total: Any = 1
    for size in sizes:
        total = total * size
    shape = (*x.shape[:first], total, *x.shape[first + len(sizes) :])
    return functions["reshape"](x, shape)


def _spans(key: Any) -> bool:
    return key is None or key is Ellipsis or isinstance(key, slice)


def _is_whole(item: Any) -> bool:
    return isinstance(item, (int, np.integer, Size)) and not isinstance(item, bool)


def _are_apart(keys: tuple[Any, ...]) -> bool:
    """Whether a slice, None or an Ellipsis, even one of no axes, stands between two indices."""
    picks = [i for i, key in enumerate(keys) if not _spans(key)]
    return picks[-1] - picks[0] >= len(picks)


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
    if len(arrays) == 1 and _are_apart(keys):  # NumPy moves axes then
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


def _within(x: Value, axis: int, item: Any) -> Any:
    """An integer of a key, counted from 0."""
    size = x.shape[axis]
    item = item if isinstance(item, Size) else operator.index(item)
    at = size + item if is_from_the_end(x, item) else item
    fusion = x._fusion
    if not (fusion._known(">=", at, 0, True) and fusion._known("<", at, size, True)):
        raise UsageError(
            f"indexing: index {item} is out of range for axis {axis} of shape "
            f"{shape_text(fusion, x.shape)}"
        )
    return at


def is_from_the_end(x: Value, place: Any) -> bool:
    """Whether a place along an axis is below 0; that of a calculated size is a guard."""
    return x._fusion._known("<", place, 0, False)


def _picked(x: Value, axis: int, item: Any) -> Value:
    return make("squeeze", [part(x, axis, _within(x, axis, item), 1)], [axis])


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
    if is_from_the_end(x, bound):
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
    """From item.start down to what is above item.stop."""
    low = _after(x, item.stop, size, 0)
    length = _after(x, item.start, size, size) - low
    fusion = x._fusion
    if not fusion._known(">=", length, 0, True):
        length = 0
    if item.start is not None or item.stop is not None:
        x = part(x, axis, low, length)
    indices = Value(fusion, fusion._native.iota(native_size(length), "int64"))
    # length - 1 is no size where there is nothing
    turned = make("take", [x, length - (indices + 1)], axis)
    return turned if step == -1 else _sliced(turned, axis, slice(None, None, -step))


def _after(x: Value, bound: Any, size: Any, default: Any) -> Any:
    """The place behind a bound of a slice that goes backward, within [0, size]."""
    if bound is None:
        return default
    at = _bound(x, bound, size, default)
    bound = bound if isinstance(bound, Size) else operator.index(bound)
    if is_from_the_end(x, bound):
        return at + 1 if x._fusion._known(">=", size + bound, 0, True) else 0
    return at + 1 if x._fusion._known("<", at, size, True) else size


class At:
    """Where `x.at[key].set(v)` makes a new value: x with other elements at a key."""

    def __init__(self, x: Value) -> None:
        self._x = x

    def __getitem__(self, key: Any) -> Place:
        return Place(self._x, key)


class Place:
    """Elements of a value; each method gives a new value, as in JAX."""

    def __init__(self, x: Value, key: Any) -> None:
        self._x = x
        self._key = key

    def get(self) -> Value:
        """The elements."""
        return index(self._x, self._key)

    def set(self, values: Any) -> Value:
        """x with these values there; of indices that come twice the last one counts."""
        return self._changed("set", values, lambda _, new: new)

    def add(self, values: Any) -> Value:
        """x with these values added there; of indices that come twice all are added."""
        return self._changed("add", values, lambda old, new: old + new)

    def multiply(self, values: Any) -> Value:
        """x multiplied by these values there."""
        return self._changed("multiply", values, lambda old, new: old * new)

    def max(self, values: Any) -> Value:
        """The greater of x and these values there."""
        return self._changed("max", values, functions["maximum"])

    def min(self, values: Any) -> Value:
        """The lesser of x and these values there."""
        return self._changed("min", values, functions["minimum"])

    def _changed(self, method: str, values: Any, change: Any) -> Value:
        x, key = self._x, self._key
        if isinstance(key, Value) and key.dtype == "bool":
            new = functions["where"](key, change(x, values), x)
            return functions["astype"](new, x.dtype)
        keys = _full_keys(x, key if isinstance(key, tuple) else (key,))
        arrays = [a for a, item in enumerate(keys) if not _spans(item) and not _is_whole(item)]
        whole = sum(isinstance(item, slice) and item == slice(None) for item in keys)
        alone = len(arrays) == 1 and whole == x.ndim - 1
        if any(item is None for item in keys) or (arrays and not alone):
            raise UsageError(
                f"at[...].{method}: found {len(arrays)} arrays of indices in the key, expected "
                "integers and slices, one array of indices beside whole axes, or a mask"
            )
        if arrays:
            return _at_indices(x, arrays[0], keys[arrays[0]], values, method, change)
        return _at_box(x, keys, values, method, change)


def _at_box(x: Value, keys: list[Any], values: Any, method: str, change: Any) -> Value:
    fusion = x._fusion
    starts: list[Any] = []
    sizes: list[Any] = []
    kept: list[int] = []
    for axis, item in enumerate(keys):
        size = x.shape[axis]
        if not isinstance(item, slice):
            starts.append(_within(x, axis, item))
            sizes.append(1)
            continue
        if item.step not in (None, 1):
            raise UsageError(f"at[...].{method}: found a slice with a step, expected none")
        start = _bound(x, item.start, size, 0)
        length = _bound(x, item.stop, size, size) - start
        starts.append(start)
        sizes.append(length if fusion._known(">=", length, 0, True) else 0)
        kept.append(axis)
    new = functions["astype"](value(f"at[...].{method}", values, x), x.dtype)
    new = functions["broadcast_to"](new, tuple(sizes[a] for a in kept))
    new = functions["reshape"](new, tuple(sizes))
    around = list(zip(starts, starts, x.shape, sizes, strict=True))
    pairs = [(low, total - start - size) for low, start, total, size in around]
    of_bool = x.dtype == "bool"
    wide = functions["pad"](functions["astype"](new, "int32") if of_bool else new, pairs)
    wide = wide != 0 if of_bool else wide
    inside: Any = None
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if isinstance(keys[axis], slice) and keys[axis] == slice(None):
            continue
        line = Value(fusion, fusion._native.iota(native_size(x.shape[axis]), "int64"))
        mask = (line >= start) & (line < start + size)
        mask = functions["reshape"](mask, (-1, *(1,) * (x.ndim - 1 - axis)))
        inside = mask if inside is None else inside & mask
    if inside is None:
        return functions["astype"](change(x, wide), x.dtype)
    return functions["astype"](functions["where"](inside, change(x, wide), x), x.dtype)


def _at_indices(x: Value, axis: int, item: Any, values: Any, method: str, change: Any) -> Value:
    at = functions["astype"](functions["ravel"](_indices(x, item)), "int64")
    given = value("indexing", item, x).shape
    sizes = (*x.shape[:axis], *given, *x.shape[axis + 1 :])
    new = functions["astype"](value(f"at[...].{method}", values, x), x.dtype)
    new = functions["broadcast_to"](new, sizes)
    new = functions["reshape"](new, (*x.shape[:axis], at.shape[0], *x.shape[axis + 1 :]))
    at = from_the_end(at, x.shape[axis], item)
    if method == "add":
        return x + make("scatter_add", [new, at], axis, [native_size(x.shape[axis])])
    if method != "set":
        raise UsageError(f"at[...].{method}: found an array of indices, expected slices or a mask")
    if x._fusion._known("==", at.shape[0], 0, assumed=False):
        return x
    # Where each element comes from: the last update whose index names it.
    fusion = x._fusion
    updates = Value(fusion, fusion._native.iota(at._native.shape()[0], "int64"))
    line = Value(fusion, fusion._native.iota(native_size(x.shape[axis]), "int64"))
    at = make("take", [line, at], 0)  # the run refuses one out of range
    hits = new_axis(at, 1) == line
    last = functions["max"](functions["where"](hits, new_axis(updates, 1), -1), 0, initial=-1)
    found = make("take", [new, functions["maximum"](last, 0)], axis)
    mask = functions["reshape"](last >= 0, (-1, *(1,) * (x.ndim - 1 - axis)))
    return functions["where"](mask, change(x, found), x)
