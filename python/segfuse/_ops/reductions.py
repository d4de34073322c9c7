"""Reductions over axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import _native
from .._dtypes import DTypeLike, dtype_name, is_float
from .._errors import UsageError
from .._numbers import whole
from .._program.lift import as_value, floating, make, value
from .._program.value import Value
from . import creation, elementwise, public, shapes
from .shapes import Axis, axes_of, axis_of


def _masked(operation: str, x: Any, where: Any, instead: float) -> Value:
    """x with `instead` where the mask does not hold."""
    x = value(operation, x, where)
    return x if where is None or where is True else elementwise.where(where, x, instead)


def kept(operation: str, keepdims: Any) -> bool:
    """Whether reduced axes stay. At its place NumPy has `dtype` or `out`, which is not taken for
    it."""
    if not isinstance(keepdims, (bool, np.bool_)):
        raise UsageError(
            f"{operation}: keepdims is {keepdims!r}, expected True or False; give what stands "
            "behind the axis by its name, as in dtype='float64'"
        )
    return bool(keepdims)


def _reduce(operation: str, x: Value, axis: Axis, keepdims: bool) -> Value:
    axes = axes_of(operation, x, axis)
    return Value(x._fusion, _native.reduce(operation, x._native, axes, kept(operation, keepdims)))


def _added(
    operation: str, x: Any, axis: Axis, keepdims: bool, dtype: DTypeLike | None, where: Any
) -> Value:
    x = _masked(operation, x, where, 0 if operation == "sum" else 1)
    if dtype is not None:
        x = elementwise.astype(x, dtype)
    elif x.dtype in ("bool", "int32"):
        x = elementwise.astype(x, "int64")
    return _reduce(operation, x, axis, keepdims)


def sum(
    x: Any,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dtype: DTypeLike | None = None,
    initial: Any = None,
    where: Any = None,
) -> Value:
    """The sum over `axis`; that of bool and int32 is int64, as in NumPy, if no `dtype` is given."""
    result = _added("sum", x, axis, keepdims, dtype, where)
    return result if initial is None else result + initial


def prod(
    x: Any,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dtype: DTypeLike | None = None,
    initial: Any = None,
    where: Any = None,
) -> Value:
    """The product over `axis`, with the types of `sum`."""
    result = _added("prod", x, axis, keepdims, dtype, where)
    return result if initial is None else result * initial


def _least(dtype: str) -> float:
    """What is not above any element of that type."""
    return {"int32": -(2**31), "int64": -(2**63)}.get(dtype, -math.inf)


def _extreme(operation: str, x: Any, axis: Axis, keepdims: bool, initial: Any, where: Any) -> Value:
    x = value(operation, x)
    if where is not None and initial is None:
        raise UsageError(f"{operation}: found `where` without `initial`, expected both")
    axes = axes_of(operation, x, axis)
    for a in range(x.ndim) if axes is None else axes:
        size = x.shape[a]
        if initial is None and x._fusion._known("==", size, 0, assumed=False):
            raise UsageError(
                f"{operation}: found no elements along axis {a}, expected at least one, or "
                "`initial`"
            )
        if isinstance(size, int) and size == 0:
            return _reduce("sum", x, axis, keepdims) + initial  # the sum of nothing is 0
    return _reduce(operation, _masked(operation, x, where, initial), axis, keepdims)


def max(
    x: Any,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    initial: Any = None,
    where: Any = None,
) -> Value:
    """The greatest element over `axis`; NaN if there is one."""
    result = _extreme("max", x, axis, keepdims, initial, where)
    return result if initial is None else elementwise.maximum(result, initial)


def min(
    x: Any,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    initial: Any = None,
    where: Any = None,
) -> Value:
    """The least element over `axis`; NaN if there is one."""
    result = _extreme("min", x, axis, keepdims, initial, where)
    return result if initial is None else elementwise.minimum(result, initial)


def logsumexp(x: Any, axis: Axis = None, keepdims: bool = False) -> Value:
    """log(sum(exp(x))) over `axis`, without overflow."""
    return _reduce("logsumexp", floating("logsumexp", x), axis, keepdims)


def count(x: Any, axis: Axis = None, dtype: DTypeLike = "int64") -> Any:
    """The number of elements of x along `axis`, as a scalar."""
    x = value("count", x)
    axes = axes_of("count", x, axis)
    number: Any = 1
    for a in range(x.ndim) if axes is None else axes:
        number = number * x.shape[a]
    return as_value(x._fusion, number, dtype_name(dtype))


def _mean_of(x: Value, axis: Axis, keepdims: bool) -> Value:
    return Value(
        x._fusion, _native.mean(x._native, axes_of("mean", x, axis), kept("mean", keepdims))
    )


def mean(
    x: Any,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dtype: DTypeLike | None = None,
    where: Any = None,
) -> Value:
    """The mean over `axis`."""
    x = floating("mean", x)
    if dtype is not None:
        x = elementwise.astype(x, dtype)
    if where is None:
        return _mean_of(x, axis, keepdims)
    return masked_mean(x, creation.zeros_like(x, "bool") | where, axis, keepdims)


def masked_mean(x: Value, mask: Value, axis: Axis, keepdims: bool) -> Value:
    """The mean of the elements where the mask, of the shape of x, holds."""
    wide = elementwise.raised(elementwise.where(mask, x, 0))
    total = sum(wide, axis, keepdims)
    number = sum(elementwise.astype(mask, wide.dtype), axis, keepdims)
    return elementwise.astype(total / number, x.dtype)


def var(
    x: Any,
    axis: Axis = None,
    keepdims: bool = False,
    ddof: int = 0,
    *,
    dtype: DTypeLike | None = None,
    where: Any = None,
) -> Value:
    """The variance over `axis`: squared deviations from the mean over (count - ddof)."""
    x = floating("var", x)
    if dtype is not None:
        x = elementwise.astype(x, dtype)
    if where is not None:
        return masked_var(x, creation.zeros_like(x, "bool") | where, axis, keepdims, ddof)
    axes, ddof = axes_of("var", x, axis), whole("var: ddof", ddof)
    return Value(x._fusion, _native.var(x._native, axes, kept("var", keepdims), ddof))


def masked_var(x: Value, mask: Value, axis: Axis, keepdims: bool, ddof: int = 0) -> Value:
    """The variance of the elements where the mask, of the shape of x, holds."""
    wide = elementwise.raised(elementwise.where(mask, x, 0))
    centred = elementwise.where(mask, wide - masked_mean(wide, mask, axis, True), 0)
    number = sum(elementwise.astype(mask, wide.dtype), axis, keepdims) - ddof
    number = elementwise.where(number > 0, number, math.nan)
    total = sum(centred * centred, axis, keepdims)
    return elementwise.astype(total / number, x.dtype)


def std(
    x: Any,
    axis: Axis = None,
    keepdims: bool = False,
    ddof: int = 0,
    *,
    dtype: DTypeLike | None = None,
    where: Any = None,
) -> Value:
    """The standard deviation over `axis`."""
    return elementwise.sqrt(var(x, axis, keepdims, ddof, dtype=dtype, where=where))


def any(x: Any, axis: Axis = None, keepdims: bool = False, *, where: Any = None) -> Value:
    """Whether one element over `axis` is true."""
    true = _masked("any", value("any", x) != 0, where, False)
    return _extreme("max", elementwise.astype(true, "int32"), axis, keepdims, 0, None) > 0


def all(x: Any, axis: Axis = None, keepdims: bool = False, *, where: Any = None) -> Value:
    """Whether all elements over `axis` are true."""
    true = _masked("all", value("all", x) != 0, where, True)
    return _extreme("min", elementwise.astype(true, "int32"), axis, keepdims, 1, None) > 0


def count_nonzero(x: Any, axis: Axis = None, keepdims: bool = False) -> Value:
    """How many elements over `axis` are not zero, in int64."""
    return sum(value("count_nonzero", x) != 0, axis, keepdims)


def ptp(x: Any, axis: Axis = None, keepdims: bool = False) -> Value:
    """The greatest element less the least one over `axis`."""
    return max(x, axis, keepdims) - min(x, axis, keepdims)


def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Value:
    """The index (int64) of the first greatest element along `axis`; of all elements without one."""
    x = value("argmax", x)
    if x.dtype == "bool":
        x = elementwise.astype(x, "int32")
    if axis is None:
        rank = x.ndim
        flat = argmax(shapes.reshape(x, -1), 0)
        return shapes.reshape(flat, (1,) * rank) if kept("argmax", keepdims) else flat
    axis = axis_of("argmax", x, axis)
    result = make("argmax", [x], [axis])
    return shapes.expand_dims(result, axis) if kept("argmax", keepdims) else result


def argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Value:
    """The index (int64) of the first least element along `axis`; of all elements without one."""
    x = value("argmin", x)
    if is_float(x.dtype):
        return argmax(-x, axis, keepdims)
    return argmax(~x, axis, keepdims)  # -x would overflow for the least integer


__all__ = [
    name for name in public(globals()) if name not in ("count", "kept", "masked_mean", "masked_var")
]
