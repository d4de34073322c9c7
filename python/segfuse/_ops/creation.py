"""New values, and random ones."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _native
from .._dtypes import DTypeLike, dtype_for, dtype_name
from .._errors import UsageError
from .._numbers import real
from .._program.lift import agree_on_shape, as_value, fusion_of, lifted, make, new_axis, value
from .._program.sizes import Size, native_size, native_sizes
from .._program.value import Value
from . import public


def _owner(operation: str, sizes: Sequence[Any], like: Any) -> Any:
    owners = [x for x in [*sizes, like] if isinstance(x, (Size, Value))]
    return fusion_of(operation, owners) if owners else None


def arange(*bounds: Any, dtype: DTypeLike | None = None, like: Value | None = None) -> Any:
    """arange(stop), arange(start, stop) or arange(start, stop, step): start, start + step, ... as
    far as they are before stop.

    Of NumPy unless a bound is a size of a value or `like` is given; int64 unless a bound is a
    float, which makes it float32. `arange(stop, dtype)` is known, too.
    """
    bounds, dtype = _bounds("arange", bounds, dtype)
    start, stop, step = _start_stop_step("arange", bounds)
    kind = dtype_name(dtype)
    fusion = _owner("arange", bounds, like)
    if fusion is None:
        return np.arange(start, stop, step, dtype=kind)
    if any(isinstance(x, float) for x in (start, stop, step)):
        whole_floats = all(isinstance(x, (int, float)) for x in (start, stop, step))
        if not whole_floats:
            raise UsageError("arange: found a float beside a size, expected integers")
        length: Any = builtins.max(0, math.ceil((stop - start) / step))
    else:
        length = _length(stop - start, step)
    numbers = Value(fusion, fusion._native.iota(native_size(length), kind))
    if not (isinstance(step, int) and step == 1):
        numbers = numbers * step
    if not (isinstance(start, int) and start == 0):
        numbers = numbers + start
    return numbers if numbers.dtype == kind else as_value(fusion, numbers, kind)


def _bounds(operation: str, bounds: Any, dtype: Any) -> tuple[tuple[Any, ...], Any]:
    numbers = (int, float, np.integer, np.floating, Size)
    if len(bounds) > 1 and not isinstance(bounds[-1], numbers):
        if dtype is not None:
            raise UsageError(f"{operation}: found the dtype twice, expected it once")
        bounds, dtype = bounds[:-1], bounds[-1]
    if not 1 <= len(bounds) <= 3 or not all(isinstance(x, numbers) for x in bounds):
        raise UsageError(f"{operation}: found {bounds}, expected one to three numbers or sizes")
    bounds = tuple(x.item() if isinstance(x, np.generic) else x for x in bounds)
    if dtype is None:
        dtype = "float32" if any(isinstance(x, float) for x in bounds) else "int64"
    return bounds, dtype


def _start_stop_step(operation: str, bounds: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    start, stop = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]
    step = bounds[2] if len(bounds) == 3 else 1
    if step == 0:
        raise UsageError(f"{operation}: found the step 0, expected another one")
    return start, stop, step


def _length(distance: Any, step: Any) -> Any:
    if isinstance(step, Size):
        step = int(step)
    if step < 0:
        distance, step = -distance, -step
    if not distance > 0:
        return 0
    return distance if step == 1 else (distance + (step - 1)) // step


def linspace(
    start: Any,
    stop: Any,
    num: Any = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> Any:
    """`num` numbers from `start` to `stop` in equal steps along a new axis; of NumPy (float32)
    unless an end is a value or `num` a size."""
    fusion = _owner("linspace", [start, stop, num], None)
    if fusion is None:
        kind = "float32" if dtype is None else dtype_name(dtype)
        return np.linspace(start, stop, num, endpoint, retstep, kind, axis)
    low, high = lifted("linspace", _ends(fusion, start, stop), floating=True)
    low, high = agree_on_shape("linspace", [low, high])
    rank = builtins.max(low.ndim, high.ndim)
    if axis != 0 and axis != -rank - 1:
        raise UsageError("linspace: found another axis than 0, expected 0; use sf.moveaxis")
    steps = num - 1 if endpoint else num
    single = not steps > 0
    ramp = Value(fusion, fusion._native.iota(native_size(num), low.dtype))
    for _ in range(rank):
        ramp = new_axis(ramp, ramp.ndim)
    step = (high - low) / (1 if single else steps)
    result = low + ramp * step
    if endpoint and not single:  # the end is exact
        ends = agree_on_shape("linspace", [ramp == steps, high + low * 0, result])
        result = make("where", ends)
    if dtype is not None:
        result = as_value(fusion, result, dtype_name(dtype))
    return (result, step) if retstep else result


def _ends(fusion: Any, start: Any, stop: Any) -> list[Any]:
    """Both ends; a value among them, so that they have a program."""
    if any(isinstance(x, (Value, Size)) for x in (start, stop)):
        return [start, stop]
    return [as_value(fusion, start, "float32"), stop]


def logspace(
    start: Any,
    stop: Any,
    num: Any = 50,
    endpoint: bool = True,
    base: float = 10.0,
    dtype: DTypeLike | None = None,
) -> Any:
    """base ** linspace(start, stop)."""
    powers = linspace(start, stop, num, endpoint)
    if isinstance(powers, Value):
        result = base**powers
        return result if dtype is None else result.astype(dtype)
    numbers = np.logspace(start, stop, num, endpoint, base)
    return numbers.astype("float32" if dtype is None else dtype_name(dtype))


def geomspace(
    start: Any, stop: Any, num: Any = 50, endpoint: bool = True, dtype: DTypeLike | None = None
) -> Any:
    """`num` numbers from `start` to `stop`, each the same multiple of the one before."""
    if _owner("geomspace", [start, stop, num], None) is None:
        numbers = np.geomspace(start, stop, num, endpoint)
        return numbers.astype("float32" if dtype is None else dtype_name(dtype))
    fusion = _owner("geomspace", [start, stop, num], None)
    first, last = lifted("geomspace", _ends(fusion, start, stop), floating=True)
    ramp = linspace(first * 0.0, first * 0.0 + 1.0, num, endpoint)
    result = first * (last / first) ** ramp
    return result if dtype is None else result.astype(dtype)


def eye(
    n: Any,
    m: Any = None,
    k: int = 0,
    dtype: DTypeLike = "float32",
    like: Value | None = None,
) -> Any:
    """1 on the diagonal k, 0 elsewhere."""
    m = n if m is None else m
    fusion = _owner("eye", [n, m], like)
    if fusion is None:
        return np.eye(n, m, k, dtype_name(dtype))
    return _compared("eq", fusion, n, m, k, dtype)


def identity(n: Any, dtype: DTypeLike = "float32", like: Value | None = None) -> Any:
    """1 on the diagonal, 0 elsewhere."""
    return eye(n, None, 0, dtype, like)


def tri(
    n: Any,
    m: Any = None,
    k: int = 0,
    dtype: DTypeLike = "float32",
    like: Value | None = None,
) -> Any:
    """1 on and below the diagonal k, 0 elsewhere."""
    m = n if m is None else m
    fusion = _owner("tri", [n, m], like)
    if fusion is None:
        return np.tri(n, m, k, dtype_name(dtype))
    return _compared("ge", fusion, n, m, k, dtype)


def _compared(relation: str, fusion: Any, n: Any, m: Any, k: int, dtype: DTypeLike) -> Value:
    """Whether row + k is so to the column."""
    row = new_axis(Value(fusion, fusion._native.iota(native_size(n), "int64")), 1)
    column = Value(fusion, fusion._native.iota(native_size(m), "int64"))
    row, column = agree_on_shape("eye", [row + k, column])
    return as_value(fusion, make(relation, [row, column]), dtype_name(dtype))


def full(shape: Any, number: float, dtype: DTypeLike = "float32", like: Value | None = None) -> Any:
    """An array of one number, of NumPy unless a size is one of a value or `like` is given."""
    sizes = [shape] if isinstance(shape, (int, Size)) else list(shape)
    fusion = _owner("full", sizes, like)
    if fusion is None:
        return np.full(sizes, number, dtype_name(dtype))
    return _filled("full", fusion, number, native_sizes(sizes), dtype_name(dtype))


def _filled(operation: str, fusion: Any, number: float, sizes: Any, dtype: str) -> Value:
    # What no float64 holds is added.
    wide = dtype == "int64" and isinstance(number, int) and builtins.abs(number) > 1 << 53
    first = 0 if wide else real(f"{operation}: number", number)
    result = Value(fusion, fusion._native.full(first, sizes, dtype))
    return result + as_value(fusion, number, dtype) if wide else result


def zeros(shape: Any, dtype: DTypeLike = "float32", like: Value | None = None) -> Any:
    """As `full` with 0."""
    return full(shape, 0, dtype, like)


def ones(shape: Any, dtype: DTypeLike = "float32", like: Value | None = None) -> Any:
    """As `full` with 1."""
    return full(shape, 1, dtype, like)


def full_like(x: Any, number: float, dtype: DTypeLike | None = None) -> Value:
    """One number in the shape and type of x."""
    x = value("full_like", x)
    kind = x.dtype if dtype is None else dtype_for(x.dtype, dtype)
    return _filled("full_like", x._fusion, number, x._native.shape(), kind)


def zeros_like(x: Any, dtype: DTypeLike | None = None) -> Value:
    """0 in the shape and type of x."""
    return full_like(x, 0, dtype)


def ones_like(x: Any, dtype: DTypeLike | None = None) -> Value:
    """1 in the shape and type of x."""
    return full_like(x, 1, dtype)


def empty(shape: Any, dtype: DTypeLike = "float32", like: Value | None = None) -> Any:
    """As `zeros`."""
    return full(shape, 0, dtype, like)


def empty_like(x: Any, dtype: DTypeLike | None = None) -> Value:
    """As `zeros_like`."""
    return full_like(x, 0, dtype)


def random_uniform(seed: Any, shape: Any) -> Value:
    """Uniform float32 in [0, 1) from an int64 seed of shape (2,); each call draws new numbers."""
    seed = value("random_uniform", seed)
    return Value(seed._fusion, _native.random_uniform(seed._native, native_sizes(shape)))


def dropout(x: Any, seed: Any, rate: float) -> Value:
    """Keeps each element with probability 1 - rate and divides it by that."""
    x, seed = value("dropout", x, seed), value("dropout", seed, x)
    return Value(x._fusion, _native.dropout(x._native, seed._native, real("dropout: rate", rate)))


__all__ = public(globals())
