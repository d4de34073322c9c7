"""Shapes that are made of others: stacks, tiles, diagonals, triangles, rolls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._dtypes import DTypeLike
from .._errors import UsageError
from .._numbers import need_plain, whole
from .._program.index import from_the_end, last_named
from .._program.lift import (
    agree_on_shape,
    fusion_of,
    is_one,
    lifted,
    make,
    value,
)
from .._program.sizes import Size
from .._program.value import Value
from . import creation, public, reductions, shapes
from . import elementwise as e
from .shapes import Axis, axes_of, axis_of

# --- triangles and diagonals ---


def _triangle(operation: str, x: Any, k: int, *, lower: bool) -> Value:
    x = value(operation, x)
    if x.ndim == 0:
        raise UsageError(f"{operation}: found {x!r}, expected one axis or more")
    if x.ndim == 1:
        x = shapes.broadcast_to(x, (x.shape[0], x.shape[0]))
    k = whole(f"{operation}: k", k)
    row = shapes.expand_dims(creation.arange(x.shape[-2], like=x), 1) + k
    column = creation.arange(x.shape[-1], like=x)
    return e.where(column <= row if lower else column >= row, x, creation.zeros_like(x))


def tril(x: Any, k: int = 0) -> Value:
    """The last two axes with 0 above the diagonal k."""
    return _triangle("tril", x, k, lower=True)


def triu(x: Any, k: int = 0) -> Value:
    """The last two axes with 0 below the diagonal k."""
    return _triangle("triu", x, k, lower=False)


def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Value:
    """The diagonal `offset` of two axes, as a new last axis."""
    x = value("diagonal", x)
    first, second = axis_of("diagonal", x, axis1), axis_of("diagonal", x, axis2)
    if first == second:
        raise UsageError(f"diagonal: found the axis {axis1} twice, expected two axes")
    order = [a for a in range(x.ndim) if a not in (first, second)]
    x = shapes.transpose(x, [*order, first, second])
    offset = whole("diagonal: offset", offset)
    x = x[..., :, offset:] if offset >= 0 else x[..., -offset:, :]
    rows, columns = x.shape[-2:]
    length = rows if rows <= columns else columns
    lead = x.shape[:-2]
    flat = shapes.reshape(x[..., :length, :length], (*lead, length * length))
    # With one more element at the end of each row, the diagonal is the first column.
    flat = _widened(flat, 0, length)
    return shapes.reshape(flat, (*lead, length, length + 1))[..., 0]


def diag(x: Any, k: int = 0) -> Value:
    """A matrix with x on the diagonal k; of a matrix that diagonal."""
    x = value("diag", x)
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        raise UsageError(f"diag: found {x!r}, expected one or two axes")
    k = whole("diag: k", k)
    x = _widened(x, max(k, 0), max(-k, 0))
    n = x.shape[0]
    return e.where(creation.eye(n, None, k, "bool", like=x), x, creation.zeros_like(x))


def _widened(x: Value, before: Any, after: Any) -> Value:
    """x with zeros around along its last axis."""
    around = [(0, 0)] * (x.ndim - 1) + [(before, after)]
    if x.dtype != "bool":
        return shapes.pad(x, around)
    return shapes.pad(e.astype(x, "int32"), around) != 0


def diagflat(x: Any, k: int = 0) -> Value:
    """A matrix with all elements of x on the diagonal k."""
    return diag(shapes.ravel(value("diagflat", x)), k)


def trace(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Value:
    """The sum of the diagonal `offset`."""
    return reductions.sum(diagonal(x, offset, axis1, axis2), -1)


def fill_diagonal(x: Any, val: Any, wrap: bool = False, *, inplace: bool = False) -> Value:
    """x with `val` on its diagonal: a new value, since nothing is changed in place."""
    x = value("fill_diagonal", x, val)
    if wrap or inplace or x.ndim != 2:
        raise UsageError(
            f"fill_diagonal: found {x!r}, wrap={wrap}, inplace={inplace}, expected two axes and "
            "neither"
        )
    mask = creation.eye(x.shape[0], x.shape[1], dtype="bool", like=x)
    return e.astype(e.where(mask, val, x), x.dtype)


# --- more or fewer axes ---


def _at_least(operation: str, arrays: tuple[Any, ...], place: Any) -> Any:
    results = []
    for array in arrays:
        x = value(operation, array)
        results.append(shapes.reshape(x, place(x.shape)) if place(x.shape) is not None else x)
    return results[0] if len(results) == 1 else results


def atleast_1d(*arrays: Any) -> Any:
    """Values with one axis or more."""
    return _at_least("atleast_1d", arrays, lambda s: None if s else (1,))


def atleast_2d(*arrays: Any) -> Any:
    """Values with two axes or more; new ones stand before."""
    return _at_least(
        "atleast_2d", arrays, lambda s: None if len(s) > 1 else ((1,) * (2 - len(s)) + s)
    )


def atleast_3d(*arrays: Any) -> Any:
    """Values with three axes or more; a vector becomes (1, N, 1), a matrix (M, N, 1)."""

    def place(s: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if len(s) > 2:
            return None
        return {0: (1, 1, 1), 1: (1, *s, 1), 2: (*s, 1)}[len(s)]

    return _at_least("atleast_3d", arrays, place)


def matrix_transpose(x: Any) -> Value:
    """The last two axes exchanged."""
    return shapes.swapaxes(x, -1, -2)


def rollaxis(x: Any, axis: int, start: int = 0) -> Value:
    """`axis` before the axis `start`."""
    x = value("rollaxis", x)
    axis = axis_of("rollaxis", x, axis)
    start = whole("rollaxis: start", start)
    start = start + x.ndim if start < 0 else start
    order = [a for a in range(x.ndim) if a != axis]
    order.insert(start - (axis < start), axis)
    return shapes.transpose(x, order)


def broadcast_arrays(*arrays: Any) -> list[Value]:
    """All values stretched to their common shape."""
    fusion = fusion_of("broadcast_arrays", arrays)
    values = [value("broadcast_arrays", x, *_owners(fusion, arrays)) for x in arrays]
    settled = agree_on_shape("broadcast_arrays", values)
    rank = max(v.ndim for v in settled)
    shape: list[Any] = [1] * rank
    for v in settled:
        for i, size in enumerate(v.shape, rank - v.ndim):
            if not is_one(size):
                shape[i] = size
    return [shapes.broadcast_to(v, tuple(shape)) for v in settled]


def _owners(fusion: Any, arrays: Sequence[Any]) -> list[Any]:
    return [x for x in arrays if isinstance(x, Value) and x._fusion is fusion][:1]


# --- stacks and parts ---


def _all(operation: str, arrays: Any) -> list[Value]:
    found = list(arrays)
    if not found:
        raise UsageError(f"{operation}: found no arrays, expected at least one")
    return lifted(operation, found)


def hstack(arrays: Sequence[Any]) -> Value:
    """The parts one after the other along the second axis; along the first if there is no other."""
    parts = [atleast_1d(x) for x in _all("hstack", arrays)]
    return shapes.concatenate(parts, 0 if parts[0].ndim == 1 else 1)


def vstack(arrays: Sequence[Any]) -> Value:
    """The parts one below the other; vectors are rows."""
    return shapes.concatenate([atleast_2d(x) for x in _all("vstack", arrays)], 0)


def dstack(arrays: Sequence[Any]) -> Value:
    """The parts one behind the other along the third axis."""
    return shapes.concatenate([atleast_3d(x) for x in _all("dstack", arrays)], 2)


def column_stack(arrays: Sequence[Any]) -> Value:
    """The parts beside each other; vectors are columns."""
    parts = [shapes.reshape(x, (-1, 1)) if x.ndim < 2 else x for x in _all("column_stack", arrays)]
    return shapes.concatenate(parts, 1)


def block(arrays: Any) -> Value:
    """A matrix of blocks: the innermost lists are put together along the last axis."""
    depth = _depth(arrays)
    parts: list[Any] = []
    _leaves(arrays, parts)
    values = iter(_all("block", parts))
    return _joined(arrays, values, depth, 0)


def _depth(arrays: Any) -> int:
    return 1 + max(_depth(a) for a in arrays) if isinstance(arrays, list) and arrays else 0


def _leaves(arrays: Any, parts: list[Any]) -> None:
    if isinstance(arrays, list):
        for a in arrays:
            _leaves(a, parts)
    else:
        parts.append(arrays)


def _joined(arrays: Any, values: Any, depth: int, level: int) -> Value:
    if not isinstance(arrays, list):
        x = next(values)
        missing = max(depth - x.ndim, 0)
        return shapes.reshape(x, (*(1,) * missing, *x.shape)) if missing else x
    parts = [_joined(a, values, depth, level + 1) for a in arrays]
    return shapes.concatenate(parts, level - depth)


def append(x: Any, values: Any, axis: int | None = None) -> Value:
    """x with `values` behind it along `axis`; of all elements without one."""
    return shapes.concatenate([x, values], axis)  # type: ignore[arg-type]


def array_split(x: Any, sections: int | Sequence[int], axis: int = 0) -> list[Value]:
    """Parts whose sizes differ by at most 1, longer ones first, or the parts between indices."""
    x = value("array_split", x)
    axis = axis_of("array_split", x, axis)
    if not isinstance(sections, (int, np.integer)):
        return shapes.split(x, sections, axis)
    sections = whole("array_split: sections", sections, 1)
    size = int(x.shape[axis])
    part, longer = divmod(size, sections)
    ends = np.cumsum([part + 1] * longer + [part] * (sections - longer))
    return shapes.split(x, [int(end) for end in ends[:-1]], axis)


def hsplit(x: Any, sections: int | Sequence[int]) -> list[Value]:
    """Parts along the second axis; along the first if there is no other."""
    x = value("hsplit", x)
    return shapes.split(x, sections, 0 if x.ndim == 1 else 1)


def vsplit(x: Any, sections: int | Sequence[int]) -> list[Value]:
    """Parts along the first axis."""
    return shapes.split(x, sections, 0)


def dsplit(x: Any, sections: int | Sequence[int]) -> list[Value]:
    """Parts along the third axis."""
    return shapes.split(x, sections, 2)


def unstack(x: Any, axis: int = 0) -> tuple[Value, ...]:
    """The parts along `axis`, which does not remain."""
    x = value("unstack", x)
    axis = axis_of("unstack", x, axis)
    before = (slice(None),) * axis
    return tuple(x[(*before, i)] for i in range(int(x.shape[axis])))


# --- repeated and turned ---


def tile(x: Any, reps: Any) -> Value:
    """x written `reps` times along each axis; leading axes are added as needed."""
    x = value("tile", x)
    counts = [reps] if isinstance(reps, (int, np.integer, Size)) else list(reps)
    counts = [1] * (x.ndim - len(counts)) + counts
    own = (*(1,) * (len(counts) - x.ndim), *x.shape)
    if len(own) > x.ndim:
        x = shapes.reshape(x, own)
    pairs = list(zip(counts, own, strict=True))
    if all(isinstance(n, int) and n == 1 for n in counts):
        return x
    for axis in range(len(pairs) - 1, -1, -1):
        x = shapes.expand_dims(x, axis)
    wide = shapes.broadcast_to(x, [size for pair in pairs for size in pair])
    return shapes.reshape(wide, [n * size for n, size in pairs])


def repeat(
    x: Any, repeats: Any, axis: int | None = None, *, total_repeat_length: Any = None
) -> Value:
    """Each element along `axis` `repeats` times; `repeats` is a number, or one for each element."""
    x = value("repeat", x)
    if axis is None:
        x, axis = shapes.ravel(x), 0
    axis = axis_of("repeat", x, axis)
    if isinstance(repeats, Value):
        raise UsageError(
            f"repeat: found {repeats!r} as repeats, expected numbers: the shape of a result "
            "cannot depend on the content of arrays"
        )
    if not isinstance(repeats, (int, np.integer, Size)):
        need_plain("repeat: repeats", repeats)
        counts = np.atleast_1d(np.asarray(repeats))
        if counts.size != 1:
            places = np.repeat(np.arange(int(x.shape[axis])), counts)
            if total_repeat_length is not None and total_repeat_length != len(places):
                raise UsageError(
                    f"repeat: found total_repeat_length={total_repeat_length}, expected "
                    f"{len(places)}"
                )
            return shapes.take(x, places, axis)
        repeats = int(counts[0])
    size = x.shape[axis]
    wide = shapes.expand_dims(x, axis + 1)
    sizes = [*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :]]
    return shapes.reshape(
        shapes.broadcast_to(wide, sizes), [*x.shape[:axis], size * repeats, *x.shape[axis + 1 :]]
    )


def roll(x: Any, shift: Any, axis: Axis = None) -> Value:
    """Elements moved by `shift` along `axis`; those beyond the end come in at the beginning."""
    x = value("roll", x)
    if axis is None:
        return shapes.reshape(roll(shapes.ravel(x), shift, 0), x.shape)
    axes = axes_of("roll", x, axis) or []
    shifts = [shift] * len(axes) if np.ndim(shift) == 0 else list(shift)
    if len(axes) == 1 and len(shifts) > 1:
        axes = axes * len(shifts)
    if len(shifts) != len(axes):
        raise UsageError(f"roll: found {len(shifts)} shifts and {len(axes)} axes, expected as many")
    for a, s in zip(axes, shifts, strict=True):
        x = _rolled(x, a, s)
    return x


def _rolled(x: Value, axis: int, shift: Any) -> Value:
    size = x.shape[axis]
    if not size > 0:
        return x
    if isinstance(shift, Value):
        at = creation.arange(size, like=x) - shift
        return shapes.take(x, e.remainder(at, as_scalar(size, x)), axis)
    shift = shift if isinstance(shift, Size) else whole("roll: shift", shift)
    if isinstance(shift, Size) or not -size < shift < size:
        shift = int(shift) % int(size)
    cut = size - shift if shift > 0 else -shift
    before = (slice(None),) * axis
    if isinstance(cut, int) and cut == 0:
        return x
    head, tail = x[(*before, slice(None, cut))], x[(*before, slice(cut, None))]
    return shapes.concatenate([tail, head], axis)


def as_scalar(size: Any, like: Value) -> Value:
    """A size as an int64 scalar."""
    return creation.zeros((), "int64", like=like) + size


def rot90(x: Any, k: int = 1, axes: Any = (0, 1)) -> Value:
    """Turned by k quarters, from the first of two axes toward the second."""
    x = value("rot90", x)
    a, b = axis_of("rot90", x, axes[0]), axis_of("rot90", x, axes[1])
    k = whole("rot90: k", k) % 4
    if a == b:
        raise UsageError(f"rot90: found the axis {a} twice, expected two axes")
    if k == 2:
        return shapes.flip(x, (a, b))
    if k == 1:
        return shapes.swapaxes(shapes.flip(x, b), a, b)
    return shapes.flip(shapes.swapaxes(x, a, b), b) if k == 3 else x


def fliplr(x: Any) -> Value:
    """The second axis in reverse."""
    return shapes.flip(x, 1)


def flipud(x: Any) -> Value:
    """The first axis in reverse."""
    return shapes.flip(x, 0)


def resize(x: Any, shape: Any) -> Value:
    """The elements in row-major order, over and over again, until the shape is full."""
    x = shapes.ravel(value("resize", x))
    sizes = [shape] if isinstance(shape, (int, Size)) else list(shape)
    wanted = int(np.prod([int(s) for s in sizes])) if sizes else 1
    have = int(x.shape[0])
    if have == 0:
        return creation.full(sizes, 0, x.dtype, like=x)
    times = -(-wanted // have)
    return shapes.reshape(tile(x, times)[:wanted], sizes)


# --- elements put in and left out, at places that are numbers ---


def _static(operation: str, places: Any, size: int) -> Any:
    if isinstance(places, Value):
        raise UsageError(
            f"{operation}: found {places!r} as places, expected numbers: the shape of a result "
            "cannot depend on the content of arrays"
        )
    need_plain(f"{operation}: places", places)
    return np.arange(size)[places] if isinstance(places, slice) else np.asarray(places)


def delete(x: Any, obj: Any, axis: int | None = None) -> Value:
    """Without the elements at the places `obj` (numbers or a slice) along `axis`."""
    x = value("delete", x)
    if axis is None:
        x, axis = shapes.ravel(x), 0
    axis = axis_of("delete", x, axis)
    size = int(x.shape[axis])
    kept = np.delete(np.arange(size), _static("delete", obj, size))
    return shapes.take(x, kept, axis)


def insert(x: Any, obj: Any, values: Any, axis: int | None = None) -> Value:
    """With `values` before the places `obj` (numbers or a slice) along `axis`."""
    x = value("insert", x, values)
    if axis is None:
        x, axis = shapes.ravel(x), 0
    axis = axis_of("insert", x, axis)
    size = int(x.shape[axis])
    places = _static("insert", obj, size)
    added = e.astype(value("insert", values, x), x.dtype)
    count = places.size
    if places.ndim == 0 and added.ndim > 0:  # all of them at one place
        if added.ndim == x.ndim:
            count = int(added.shape[axis])
        elif x.ndim == 1:
            count = int(added.shape[0])
    sizes = [*x.shape[:axis], count, *x.shape[axis + 1 :]]
    if 0 < added.ndim < x.ndim and axis == 0 and added.ndim == x.ndim - 1 and count != 1:
        added = shapes.expand_dims(added, 0)
    added = shapes.broadcast_to(added, sizes)
    flat = np.full(count, int(places)) if places.ndim == 0 else places.ravel()
    order = np.insert(np.arange(size), flat, np.arange(size, size + count))
    return shapes.take(shapes.concatenate([x, added], axis), order, axis)


def compress(condition: Any, x: Any, axis: int | None = None) -> Value:
    """The elements along `axis` where the condition, which is of numbers, holds."""
    x = value("compress", x)
    if axis is None:
        x, axis = shapes.ravel(x), 0
    mask = _static("compress", condition, 0)
    return shapes.take(x, np.flatnonzero(mask), axis)


def extract(condition: Any, x: Any) -> Value:
    """The elements where the condition, which is of numbers, holds."""
    return compress(np.ravel(_static("extract", condition, 0)), x)


def put_along_axis(x: Any, indices: Any, values: Any, axis: int) -> Value:
    """x with `values` at the places along `axis` that the indices name, of several the last: a new
    value, since nothing is changed in place."""
    x, at = value("put_along_axis", x, indices), value("put_along_axis", indices, x)
    axis = axis_of("put_along_axis", x, axis)
    if at.ndim != x.ndim:
        raise UsageError(
            f"put_along_axis: found {at!r} for {x!r}, expected indices of as many axes"
        )
    sizes = [*x.shape[:axis], at.shape[axis], *x.shape[axis + 1 :]]
    if not x._fusion._known(">", at.shape[axis], 0, True):
        return x
    new = e.astype(value("put_along_axis", values, x), x.dtype)
    new = shapes.moveaxis(shapes.broadcast_to(new, sizes), axis, -1)
    at = from_the_end(shapes.broadcast_to(at, sizes), x.shape[axis], indices)
    at = shapes.moveaxis(e.astype(at, "int64"), axis, -1)
    x = shapes.moveaxis(x, axis, -1)
    size, rows = x.shape[-1], shapes.reshape(at, (-1, at.shape[-1]))
    line = creation.arange(size, like=x)
    inside = make("take", [line, rows], 0)  # the run refuses one out of range
    places = inside + shapes.expand_dims(creation.arange(rows.shape[0], like=x), 1) * size
    last = last_named(shapes.ravel(places), x.size)
    found = make("take", [shapes.ravel(new), e.maximum(last, 0)], 0)
    moved = shapes.reshape(e.where(last >= 0, found, shapes.ravel(x)), x.shape)
    return shapes.moveaxis(moved, -1, axis)


# --- grids ---


def meshgrid(*arrays: Any, sparse: bool = False, indexing: str = "xy", copy: bool = True) -> Any:
    """Each vector stretched over a grid of all: the first along the second axis, unless `indexing`
    is "ij"."""
    if indexing not in ("xy", "ij"):
        raise UsageError(f"meshgrid: found the indexing {indexing!r}, expected 'xy' or 'ij'")
    owners = _owners(fusion_of("meshgrid", arrays), arrays)
    vectors = [shapes.ravel(value("meshgrid", x, *owners)) for x in arrays]
    rank = len(vectors)
    order = list(range(rank))
    if indexing == "xy" and rank > 1:
        order[0], order[1] = 1, 0
    thin = [
        shapes.reshape(v, [v.shape[0] if a == at else 1 for a in range(rank)])
        for v, at in zip(vectors, order, strict=True)
    ]
    if sparse:
        return thin
    full: list[Any] = [1] * rank
    for v, at in zip(vectors, order, strict=True):
        full[at] = v.shape[0]
    return [shapes.broadcast_to(v, full) for v in thin]


def ix_(*arrays: Any) -> tuple[Value, ...]:
    """Vectors of indices whose combinations are a grid."""
    owners = _owners(fusion_of("ix_", arrays), arrays)
    vectors = [value("ix_", x, *owners) for x in arrays]
    rank = len(vectors)
    for v in vectors:
        if v.ndim != 1 or v.dtype == "bool":
            raise UsageError(
                f"ix_: found {v!r}, expected vectors of indices; a mask would make a shape that "
                "depends on content"
            )
    return tuple(
        shapes.reshape(v, [v.shape[0] if a == at else 1 for a in range(rank)])
        for at, v in enumerate(vectors)
    )


def vander(x: Any, n: Any = None, increasing: bool = False) -> Value:
    """The powers of each element: n of them, falling unless `increasing`."""
    x = value("vander", x)
    if x.ndim != 1:
        raise UsageError(f"vander: found {x!r}, expected one axis")
    count = int(x.shape[0]) if n is None else whole("vander: n", n, 0)
    columns = [creation.ones_like(x)]
    for _ in range(count - 1):
        columns.append(columns[-1] * x)
    columns = columns[:count]
    if not columns:
        return creation.full((x.shape[0], 0), 0, x.dtype, like=x)
    return shapes.stack(columns if increasing else columns[::-1], 1)


def ravel_multi_index(multi_index: Any, dims: Any, mode: str = "raise") -> Value:
    """The index in row-major order of places given by an index for each axis."""
    places = list(multi_index)
    sizes = [dims] if isinstance(dims, (int, Size)) else list(dims)
    if mode != "raise" or len(places) != len(sizes):
        raise UsageError(
            f"ravel_multi_index: found {len(places)} indices for {len(sizes)} axes and the mode "
            f"{mode!r}, expected as many, and 'raise'"
        )
    result: Any = 0
    for at, size in zip(places, sizes, strict=True):
        result = result * size + at
    return result


def unravel_index(indices: Any, shape: Any) -> tuple[Value, ...]:
    """The place along each axis of indices in row-major order."""
    at = value("unravel_index", indices)
    sizes = [shape] if isinstance(shape, (int, Size)) else list(shape)
    results: list[Value] = []
    for size in sizes[::-1]:
        scalar = as_scalar(size, at)
        results.append(e.remainder(at, scalar))
        at = e.floor_divide(at, scalar)
    return tuple(results[::-1])


def copy(x: Any) -> Value:
    """The value itself: nothing changes it."""
    return value("copy", x)


def asarray(x: Any, dtype: DTypeLike | None = None) -> Value:
    """The value itself, or its elements as another type."""
    x = value("asarray", x)
    return x if dtype is None else e.astype(x, dtype)


def shape(x: Any) -> tuple[Any, ...]:
    """The sizes of x."""
    return value("shape", x).shape


def ndim(x: Any) -> int:
    """The number of axes of x."""
    return value("ndim", x).ndim


def size(x: Any, axis: int | None = None) -> Any:
    """The number of elements of x, or its size along `axis`."""
    x = value("size", x)
    return x.size if axis is None else x.shape[axis_of("size", x, axis)]


__all__ = [name for name in public(globals()) if name != "as_scalar"]
