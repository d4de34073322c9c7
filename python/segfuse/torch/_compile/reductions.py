"""Rows of the table: reductions."""

from __future__ import annotations

import math
from typing import Any

import torch

from ... import ops as sf
from ..._program.value import Value
from .table import Arguments, Result, any_of, cast, needs_floats, rows


def _axes(x: Value, dim: Any) -> list[int]:
    """The axes that `dim` names: all for None and for an empty list; none of a scalar."""
    if dim is None or (isinstance(dim, (list, tuple)) and len(dim) == 0):
        return list(range(x.ndim))
    dims = dim if isinstance(dim, (list, tuple)) else [dim]
    return sorted({d % x.ndim for d in dims}) if x.ndim else []


def _count(x: Value, axes: list[int]) -> Any:
    total: Any = 1
    for axis in axes:
        total = total * x.shape[axis]
    return total


def _wide(x: Value) -> Value:
    return cast(x, "float32") if x.dtype in ("float16", "bfloat16") else x


@rows("sum.default sum.dim_IntList")
def _sum(
    result: Result, self: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    return sf.sum(cast(self, result.dtype), _axes(self, dim), keepdim)


@rows("mean.default mean.dim")
def _mean(
    result: Result, self: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    x = _wide(cast(self, result.dtype))
    axes = _axes(x, dim)
    return sf.sum(x, axes, keepdim) / _count(x, axes)


def _refuses_bool(arguments: Arguments) -> str | None:
    if arguments["self"].dtype is torch.bool:
        return "segfuse has it for numbers, not for bool"
    return None


def _refuses_empty(arguments: Arguments) -> str | None:
    """What a reduction without elements gives is PyTorch's to say."""
    if any(isinstance(size, int) and size == 0 for size in arguments["self"].shape):
        return "the operand has no elements"
    return None


_EXTREMES = any_of(_refuses_bool, _refuses_empty)


@rows("amax", refuses=_EXTREMES)
def _amax(result: Result, self: Value, dim: Any, keepdim: bool) -> Value:
    return sf.max(self, _axes(self, dim), keepdim)


@rows("amin", refuses=_EXTREMES)
def _amin(result: Result, self: Value, dim: Any, keepdim: bool) -> Value:
    return sf.min(self, _axes(self, dim), keepdim)


@rows("max.default", refuses=_EXTREMES)
def _max(result: Result, self: Value) -> Value:
    return sf.max(self)


@rows("min.default", refuses=_EXTREMES)
def _min(result: Result, self: Value) -> Value:
    return sf.min(self)


def _refuses_integers(arguments: Arguments) -> str | None:
    return _EXTREMES(arguments) or needs_floats(arguments)  # -x of the least integer is itself


def _first_greatest(x: Value, dim: int | None, keepdim: bool) -> Value:
    if x.ndim == 0:
        return cast(x * 0, "int64") if x.dtype.startswith("int") else sf.zeros_like(x, "int64")
    return sf.argmax(x, dim, keepdim)


@rows("argmax", refuses=_EXTREMES)
def _argmax(result: Result, self: Value, dim: int | None, keepdim: bool) -> Value:
    return _first_greatest(self, dim, keepdim)


@rows("argmin", refuses=_refuses_integers)
def _argmin(result: Result, self: Value, dim: int | None, keepdim: bool) -> Value:
    return _first_greatest(-self, dim, keepdim)


@rows("max.dim", refuses=_EXTREMES)
def _max_dim(result: Result, self: Value, dim: int, keepdim: bool) -> tuple[Value, Value]:
    return sf.max(self, _axes(self, dim), keepdim), _first_greatest(self, dim, keepdim)


@rows("min.dim", refuses=_refuses_integers)
def _min_dim(result: Result, self: Value, dim: int, keepdim: bool) -> tuple[Value, Value]:
    return sf.min(self, _axes(self, dim), keepdim), _first_greatest(-self, dim, keepdim)


@rows("any.default any.dim any.dims")
def _any(result: Result, self: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return sf.max(_one_or_zero(self), _axes(self, dim), keepdim, initial=0) > 0


@rows("all.default all.dim all.dims")
def _all(result: Result, self: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return sf.max(1 - _one_or_zero(self), _axes(self, dim), keepdim, initial=0) <= 0


def _one_or_zero(x: Value) -> Value:
    return cast(cast(x, "bool"), "int32")


@rows("prod.default prod.dim_int")
def _prod(
    result: Result, self: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    return sf.prod(cast(self, result.dtype), _axes(self, dim), keepdim)


def _moments(x: Value, dim: Any, correction: Any, keepdim: bool) -> tuple[Value, Value]:
    """Variance and mean in float32 or wider; without a degree of freedom the variance is that
    of a division by 0."""
    x = _wide(x)
    axes = _axes(x, dim)
    if axes:
        mean, squares = (
            Value(x._fusion, v) for v in x._fusion._native.apply("welford", [x._native], [axes])
        )
    else:
        mean, squares = x, x - x
    count = sf.full((), 0, x.dtype, like=x) + _count(x, axes)
    freedom = count - (1 if correction is None else correction)
    variance = squares / sf.maximum(freedom, 0)
    mean = sf.where(count > 0, mean, math.nan)
    if keepdim:
        for axis in axes:
            mean, variance = sf.expand_dims(mean, axis), sf.expand_dims(variance, axis)
    return variance, mean


@rows("var.correction", refuses=needs_floats)
def _var(result: Result, self: Value, dim: Any, correction: Any, keepdim: bool) -> Value:
    return _moments(self, dim, correction, keepdim)[0]


@rows("var_mean.correction", refuses=needs_floats)
def _var_mean(
    result: Result, self: Value, dim: Any, correction: Any, keepdim: bool
) -> tuple[Value, Value]:
    return _moments(self, dim, correction, keepdim)


def _on_axis(function: Any, x: Value, dim: int) -> Value:
    """A function along one axis; a scalar is an axis of one element."""
    if x.ndim == 0:
        return sf.reshape(function(sf.reshape(x, (1,)), 0), ())
    return function(x, dim)


@rows("_softmax", refuses=needs_floats)
def _softmax(result: Result, self: Value, dim: int, half_to_float: bool) -> Value:
    return _on_axis(sf.softmax, cast(self, result.dtype), dim)


@rows("_log_softmax", refuses=needs_floats)
def _log_softmax(result: Result, self: Value, dim: int, half_to_float: bool) -> Value:
    return _on_axis(sf.log_softmax, cast(self, result.dtype), dim)
