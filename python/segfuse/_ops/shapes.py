"""The same elements at other places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _native
from .._dtypes import DTypeLike
from .._errors import UsageError
from .._numbers import real, whole
from .._program.index import from_the_end
from .._program.lift import (
    as_value,
    common_dtype,
    fusion_of,
    is_one,
    kept_weak,
    lifted,
    make,
    new_axis,
    same_size,
    shape_text,
    value,
    value_of,
    with_constant,
)
from .._program.sizes import Size, native_sizes
from .._program.value import Value
from . import creation, elementwise, public

Axis = Any
"""An int, a tuple of ints, or None for all axes; negative ones count from the end."""


def axes_of(operation: str, x: Value, axis: Axis) -> list[int] | None:
    """The axes counted from 0; None for all."""
    if axis is None:
        return None
    return [axis_of(operation, x, a) for a in (axis if isinstance(axis, (tuple, list)) else [axis])]


def axis_of(operation: str, x: Value, axis: int, more: int = 0) -> int:
    """The axis counted from 0, in a value that is to have `more` axes than x."""
    rank = x.ndim + more
    axis = whole(f"{operation}: axis", axis)
    if not -rank <= axis < rank:
        raise UsageError(f"{operation}: axis {axis} does not exist; {x!r} has {x.ndim} axes")
    return axis % rank


def reshape(x: Any, shape: Any, order: str = "C") -> Value:
    """The same elements in row-major order in another shape; one size may be -1. With the order
    "F", the first axis is the fastest one, before and after."""
    x = value("reshape", x)
    if order == "F":
        turned = [shape] if isinstance(shape, (int, Size)) else list(shape)[::-1]
        return transpose(reshape(transpose(x), turned))
    if order not in ("C", "A"):
        raise UsageError(f"reshape: found the order {order!r}, expected 'C' or 'F'")
    sizes = [shape] if isinstance(shape, (int, Size)) else list(shape)
    fusion = x._fusion
    holes = [i for i, size in enumerate(sizes) if isinstance(size, int) and size == -1]
    if len(holes) > 1:
        raise UsageError("reshape: found -1 twice, expected it once at most")
    if holes:
        sizes[holes[0]] = _quotient(x, [s for i, s in enumerate(sizes) if i != holes[0]], shape)
    total: Any = 1
    for size in sizes:
        total = total * size
    before, after = fusion._number(x.size), fusion._number(total)
    if before is not None and after is not None and before != after:
        raise UsageError(
            f"reshape: found {before} elements of shape {shape_text(fusion, x.shape)}, expected "
            f"{after} for {shape_text(fusion, sizes)}"
        )
    found = Value(fusion, _native.reshape(x._native, native_sizes(sizes)))
    return kept_weak(found, [x], lambda wide: reshape(wide[0], sizes))


def _quotient(x: Value, sizes: list[Any], shape: Any) -> Any:
    """The size that stands for -1: the others cancel one by one as far as they are symbols."""
    fusion, rest, number = x._fusion, x.size, 1
    for size in sizes:
        exact = None
        if isinstance(size, Size) and isinstance(rest, Size):
            exact = fusion._native.divide(rest._native, size._native)
        if exact is None:
            number *= int(size)
        else:
            rest = fusion._size(exact)
    if number == 0:
        raise UsageError(f"reshape: found -1 beside a size 0 in {shape}, expected a size")
    known = fusion._number(rest)
    if known is not None and known % number:
        raise UsageError(
            f"reshape: {fusion._number(x.size)} elements of shape {shape_text(fusion, x.shape)} "
            f"are not a multiple of the sizes beside -1 in {shape}"
        )
    return rest // number


def ravel(x: Any, order: str = "C") -> Value:
    """One axis."""
    return reshape(x, -1, "C" if order == "K" else order)


def transpose(x: Any, axes: Sequence[int] | None = None) -> Value:
    """Result axis i is axis axes[i]; all axes in reverse without `axes`."""
    x = value("transpose", x)
    order = (
        list(range(x.ndim))[::-1] if axes is None else [axis_of("transpose", x, a) for a in axes]
    )
    return make("permute", [x], order)


def swapaxes(x: Any, axis1: int, axis2: int) -> Value:
    """Two axes exchanged."""
    x = value("swapaxes", x)
    order = list(range(x.ndim))
    a, b = axis_of("swapaxes", x, axis1), axis_of("swapaxes", x, axis2)
    order[a], order[b] = order[b], order[a]
    return make("permute", [x], order)


def moveaxis(x: Any, source: Axis, destination: Axis) -> Value:
    """Axes at other places; the rest stay in their order."""
    x = value("moveaxis", x)
    sources, targets = axes_of("moveaxis", x, source), axes_of("moveaxis", x, destination)
    if sources is None or targets is None or len(sources) != len(targets):
        raise UsageError(
            f"moveaxis: found the axes {source} and {destination}, expected as many of one as of "
            "the other"
        )
    order = [a for a in range(x.ndim) if a not in sources]
    for target, a in sorted(zip(targets, sources, strict=True)):
        order.insert(target, a)
    return make("permute", [x], order)


def expand_dims(x: Any, axis: Axis) -> Value:
    """New axes of size 1 at `axis` of the result."""
    x = value("expand_dims", x)
    axes = list(axis) if isinstance(axis, (tuple, list)) else [axis]
    for at in sorted(axis_of("expand_dims", x, a, len(axes)) for a in axes):
        x = new_axis(x, at)
    return x


def squeeze(x: Any, axis: Axis = None) -> Value:
    """Without `axis`, or without all axes of size 1."""
    x = value("squeeze", x)
    axes = (
        [i for i, s in enumerate(x.shape) if is_one(s)]
        if axis is None
        else axes_of("squeeze", x, axis)
    )
    assert axes is not None
    for a in axes:
        if not is_one(x.shape[a]):
            raise UsageError(f"squeeze: axis {a} of {x!r} is not 1")
    return make("squeeze", [x], sorted(axes))


def broadcast_to(x: Any, shape: Any) -> Value:
    """Stretched to a shape as NumPy does."""
    x = value("broadcast_to", x)
    sizes = [shape] if isinstance(shape, (int, Size)) else list(shape)
    for axis, (own, wanted) in enumerate(zip(x.shape[::-1], sizes[::-1], strict=False), 1):
        wanted_one = isinstance(wanted, (int, Size)) and is_one(wanted)
        if is_one(own) and not wanted_one:
            x = with_constant(x, x.ndim - axis, 1)
    found = Value(x._fusion, _native.broadcast_to(x._native, native_sizes(sizes)))
    return kept_weak(found, [x], lambda wide: broadcast_to(wide[0], sizes))


def concatenate(arrays: Sequence[Any], axis: int = 0) -> Value:
    """The parts one after the other along `axis`."""
    if len(arrays) == 0:
        raise UsageError("concatenate: found no arrays, expected at least one")
    values = lifted("concatenate", list(arrays))
    if axis is None:
        values, axis = [reshape(v, -1) for v in values], 0
    for v in values:
        if v.ndim != values[0].ndim:
            raise UsageError(f"concatenate: found {values[0]!r} and {v!r}, expected one rank")
    axis = axis_of("concatenate", values[0], axis)
    for v in values[1:]:
        for other, (a, b) in enumerate(zip(values[0].shape, v.shape, strict=True)):
            if other != axis and not same_size(v._fusion, a, b):
                shapes = [shape_text(v._fusion, x.shape) for x in (values[0], v)]
                raise UsageError(
                    f"concatenate: the shapes {shapes[0]} and {shapes[1]} differ in axis {other}"
                )
    return make("concat", values, axis)


def stack(arrays: Sequence[Any], axis: int = 0) -> Value:
    """The parts along a new axis."""
    values = lifted("stack", list(arrays))
    at = axis_of("stack", values[0], axis, 1)
    return concatenate([expand_dims(v, at) for v in values], at)


def split(x: Any, sections: int | Sequence[int], axis: int = 0) -> list[Value]:
    """Equal parts, or the parts between indices."""
    x = value("split", x)
    axis = axis_of("split", x, axis)
    size = x.shape[axis]
    if isinstance(sections, (int, np.integer)):
        sections = whole("split: sections", sections, 1)
        if size % sections != 0:
            raise UsageError(
                f"split: the size {size} of axis {axis} is not a multiple of {sections}"
            )
        bounds = [size // sections * i for i in range(sections)] + [size]
    else:
        bounds = [0, *sections, size]
    before = (slice(None),) * axis
    return [x[(*before, slice(a, b))] for a, b in zip(bounds[:-1], bounds[1:], strict=True)]


def flip(x: Any, axis: Axis = None) -> Value:
    """Elements in reverse along `axis`."""
    x = value("flip", x)
    axes = range(x.ndim) if axis is None else axes_of("flip", x, axis) or ()
    for a in axes:
        x = x[(*(slice(None),) * a, slice(None, None, -1))]
    return x


def pad(x: Any, pad_width: Any, mode: str = "constant", constant_values: float = 0) -> Value:
    """`constant_values` around, or elements of x: the last one ("edge"), those inward with it
    ("symmetric") or without it ("reflect"), or those of the other end ("wrap"). pad_width is n,
    (before, after), or one such pair for each axis."""
    x = value("pad", x)
    if mode != "constant" and mode not in _PAD_PLACES:
        modes = ", ".join(map(repr, ("constant", *_PAD_PLACES)))
        raise UsageError(f"pad: found the mode {mode!r}, expected one of {modes}")
    if isinstance(pad_width, (int, np.integer, Size)):
        pad_width = (pad_width, pad_width)
    pairs = list(pad_width)
    if pairs and isinstance(pairs[0], (int, np.integer, Size)):
        pairs = [pad_width] * x.ndim
    if len(pairs) == 1:
        pairs = pairs * x.ndim
    if len(pairs) != x.ndim or any(len(pair) != 2 for pair in pairs):
        raise UsageError(f"pad: found {pad_width}, expected (before, after) for each axis of {x!r}")
    if mode != "constant":
        return _padded_with_own(x, pairs, mode)
    low, high = native_sizes([p[0] for p in pairs]), native_sizes([p[1] for p in pairs])
    if x.dtype == "int64" and isinstance(constant_values, int) and abs(constant_values) > 1 << 53:
        inner = make("pad", [x - constant_values], low, high, 0.0)  # exact: both wrap
        return inner + constant_values
    return make("pad", [x], low, high, real("pad: constant_values", constant_values))


_PAD_PLACES = {
    "edge": lambda at, size: elementwise.clip(at, 0, size - 1),
    "reflect": lambda at, size: _there_and_back(at, size, 1),
    "symmetric": lambda at, size: _there_and_back(at, size, 0),
    "wrap": lambda at, size: elementwise.remainder(at, size),
}
"""From which element of an axis the one at a place within or beyond it is taken."""


def _there_and_back(at: Value, size: Any, shared: int) -> Value:
    at = elementwise.remainder(at, 2 * (size - shared))  # 0 where that is
    return elementwise.minimum(at, 2 * size - 1 - shared - at)


def _padded_with_own(x: Value, pairs: Sequence[Any], mode: str) -> Value:
    for axis, (before, after) in enumerate(pairs):
        size = x.shape[axis]
        if not before + after > 0:
            continue
        if not size > 0:
            raise UsageError(f"pad: axis {axis} of {x!r} is empty, expected mode='constant'")
        line = creation.arange(size + before + after, like=x) - before
        x = make("take", [x, _PAD_PLACES[mode](line, size)], axis)
    return x


def take(x: Any, indices: Any, axis: int | None = None, mode: str = "raise") -> Value:
    """`axis` of x is replaced by the axes of the indices. One below 0 counts from the end. The
    modes "wrap" and "clip" bring indices out of range into it."""
    if isinstance(indices, list) and np.size(indices) == 0:
        indices = np.zeros(np.shape(indices), np.int64)  # np.asarray([]) is float
    fusion = fusion_of("take", [x, indices])
    x = value("take", x, indices)
    if axis is None:
        x, axis = reshape(x, -1), 0
    at = value_of(fusion, "take", indices)
    at = as_value(fusion, at, common_dtype([at]))
    axis = axis_of("take", x, axis)
    size = x.shape[axis]
    if mode == "raise":
        at = from_the_end(at, size, indices)
    elif mode not in ("clip", "wrap"):
        raise UsageError(f"take: found the mode {mode!r}, expected 'raise', 'wrap' or 'clip'")
    elif size > 0:
        at = elementwise.astype(at, "int64")
        at = (
            elementwise.clip(at, 0, size - 1) if mode == "clip" else elementwise.remainder(at, size)
        )
    return make("take", [x, at], axis)


def take_along_axis(x: Any, indices: Any, axis: int) -> Value:
    """Along `axis` the element that each index names; the shape is that of the indices. An index
    below 0 counts from the end."""
    x, at = value("take_along_axis", x, indices), value("take_along_axis", indices, x)
    axis = axis_of("take_along_axis", x, axis)
    return make("gather", [x, from_the_end(at, x.shape[axis], indices)], axis)


def scatter_add(updates: Any, indices: Any, axis: int, size: Any) -> Value:
    """Adds updates into zeros of `size` along `axis`: the adjoint of take()."""
    updates, at = value("scatter_add", updates, indices), value("scatter_add", indices, updates)
    axis = axis_of("scatter_add", updates, axis, 1 - at.ndim)
    return make("scatter_add", [updates, at], axis, native_sizes(size))


def sliding_windows(x: Any, size: int, axis: int = -1, stride: int = 1, dilation: int = 1) -> Value:
    """`axis` becomes (windows, size): element j of window i is i * stride + j * dilation."""
    x = value("sliding_windows", x)
    return make("unfold", [x], axis_of("sliding_windows", x, axis), size, stride, dilation)


def one_hot(indices: Any, classes: Any, dtype: DTypeLike = "float32") -> Value:
    """1 where the new last axis is the index, 0 elsewhere."""
    at = value("one_hot", indices)
    return elementwise.astype(
        expand_dims(at, -1) == creation.arange(classes, dtype=at.dtype, like=at), dtype
    )


__all__ = [name for name in public(globals()) if name not in ("axes_of", "axis_of")]
