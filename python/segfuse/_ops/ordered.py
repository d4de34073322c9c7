"""Operations that need elements in order: running results, recurrences, sorting and quantiles."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._dtypes import DTypeLike, is_float
from .._errors import UsageError
from .._numbers import need_plain, whole
from .._program.lift import agree_on_shape, as_value, floating, lifted, value
from .._program.sizes import Size
from .._program.value import Value
from . import creation, public, reductions, shapes, statistics
from . import elementwise as e
from .shapes import Axis, axes_of, axis_of

# --- running results ---


def _make(operation: str, operands: list[Value], *attributes: Any) -> list[Value]:
    fusion = operands[0]._fusion
    natives = fusion._native.apply(operation, [x._native for x in operands], list(attributes))
    return [Value(fusion, native) for native in natives]


def _flat(operation: str, x: Value, axis: int | None) -> tuple[Value, int]:
    return (shapes.ravel(x), 0) if axis is None else (x, axis_of(operation, x, axis))


def _running(name: str, operation: str, x: Any, axis: int | None, reverse: bool) -> Value:
    x, axis = _flat(name, value(name, x), axis)
    if x.dtype == "bool":
        x = e.astype(x, "int64")
    return _make(operation, [x], axis, int(bool(reverse)))[0]


def _typed(operation: str, x: Any, dtype: DTypeLike | None) -> Any:
    x = value(operation, x)
    if dtype is None and x.dtype == "int32":
        dtype = "int64"
    return x if dtype is None else e.astype(x, dtype)


def cumsum(
    x: Any, axis: int | None = None, dtype: DTypeLike | None = None, *, reverse: bool = False
) -> Value:
    """The sums of all elements up to each along `axis` (of all elements in row-major order without
    one); from the end on if `reverse`. That of bool and int32 is int64, as in NumPy."""
    return _running("cumsum", "cumsum", _typed("cumsum", x, dtype), axis, reverse)


def cumprod(
    x: Any, axis: int | None = None, dtype: DTypeLike | None = None, *, reverse: bool = False
) -> Value:
    """The products of all elements up to each along `axis`, as `cumsum`."""
    return _running("cumprod", "cumprod", _typed("cumprod", x, dtype), axis, reverse)


def cummax(x: Any, axis: int = -1, *, reverse: bool = False) -> Value:
    """The greatest element up to each along `axis`; NaN from the first one on."""
    return _running("cummax", "cummax", x, axis, reverse)


def cummin(x: Any, axis: int = -1, *, reverse: bool = False) -> Value:
    """The least element up to each along `axis`; NaN from the first one on."""
    return _running("cummin", "cummin", x, axis, reverse)


def cumlogsumexp(x: Any, axis: int = -1, *, reverse: bool = False) -> Value:
    """log(cumsum(exp(x))) along `axis`, without overflow."""
    return _running("cumlogsumexp", "cumlogsumexp", floating("cumlogsumexp", x), axis, reverse)


def linear_scan(a: Any, b: Any, axis: int = -1, *, reverse: bool = False) -> Value:
    """y[t] = a[t] * y[t - 1] + b[t] along `axis`, with 0 before the first; a and b broadcast."""
    x, y = agree_on_shape("linear_scan", lifted("linear_scan", [a, b], floating=True))
    x, y = x + creation.zeros_like(y), y + creation.zeros_like(x)
    axis = axis_of("linear_scan", y, axis)
    return _make("linear_scan", [x, y], axis, int(bool(reverse)))[0]


def _with_initial(
    operation: str, x: Any, axis: int | None, include_initial: bool, first: int
) -> tuple[Value, int]:
    x = value(operation, x)
    if axis is None and x.ndim != 1:
        raise UsageError(f"{operation}: found {x!r} and no axis, expected an axis")
    axis = axis_of(operation, x, 0 if axis is None else axis)
    if include_initial:
        sizes = [*x.shape[:axis], 1, *x.shape[axis + 1 :]]
        x = shapes.concatenate([creation.full(sizes, first, x.dtype, like=x), x], axis)
    return x, axis


def cumulative_sum(
    x: Any,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
) -> Value:
    """As `cumsum`; with `include_initial` a 0 comes first."""
    x = _typed("cumulative_sum", x, dtype)
    return cumsum(*_with_initial("cumulative_sum", x, axis, include_initial, 0))


def cumulative_prod(
    x: Any,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
) -> Value:
    """As `cumprod`; with `include_initial` a 1 comes first."""
    x = _typed("cumulative_prod", x, dtype)
    return cumprod(*_with_initial("cumulative_prod", x, axis, include_initial, 1))


def nancumsum(x: Any, axis: int | None = None, dtype: DTypeLike | None = None) -> Value:
    """As `cumsum`, with 0 in place of NaN."""
    x = value("nancumsum", x)
    return cumsum(e.where(e.is_nan(x), 0, x) if is_float(x.dtype) else x, axis, dtype)


def nancumprod(x: Any, axis: int | None = None, dtype: DTypeLike | None = None) -> Value:
    """As `cumprod`, with 1 in place of NaN."""
    x = value("nancumprod", x)
    return cumprod(e.where(e.is_nan(x), 1, x) if is_float(x.dtype) else x, axis, dtype)


def unwrap(p: Any, discont: Any = None, axis: int = -1, *, period: float = 2 * math.pi) -> Value:
    """Angles without jumps: multiples of the period are added where neighbours are further apart
    than `discont` (half a period)."""
    x = floating("unwrap", p)
    axis = axis_of("unwrap", x, axis)
    steps = statistics.diff(x, axis=axis)
    half = period / 2
    limit = half if discont is None else max(discont, half)
    wrapped = e.remainder(steps + half, period) - half
    wrapped = e.where((wrapped == -half) & (steps > 0), half, wrapped)
    fixes = e.where(e.abs(steps) < limit, 0.0, wrapped - steps)
    before = (slice(None),) * axis
    moved = x[(*before, slice(1, None))] + cumsum(fixes, axis)
    return shapes.concatenate([x[(*before, slice(None, 1))], moved], axis)


# --- sorting ---


def _sorted(operation: str, x: Any, axis: int | None, descending: bool) -> tuple[Value, Value]:
    x, axis = _flat(operation, value(operation, x), axis)
    of_bool = x.dtype == "bool"
    results = _make("sort", [e.astype(x, "int32") if of_bool else x], axis, int(bool(descending)))
    return (results[0] != 0 if of_bool else results[0]), results[1]


def sort(
    x: Any,
    axis: int | None = -1,
    kind: Any = None,
    *,
    stable: bool | None = None,
    descending: bool = False,
) -> Value:
    """The elements along `axis` in ascending order (of all without one); NaN is greater than all
    numbers. Every `kind` is stable."""
    return _sorted("sort", x, axis, descending)[0]


def argsort(
    x: Any,
    axis: int | None = -1,
    kind: Any = None,
    *,
    stable: bool | None = None,
    descending: bool = False,
) -> Value:
    """Where each element of `sort(x)` is in x (int64); equal ones keep their order."""
    return _sorted("argsort", x, axis, descending)[1]


def topk(x: Any, k: Any, axis: int = -1) -> tuple[Value, Value]:
    """The k greatest elements along `axis` in descending order, NaN first, and where they are."""
    x = value("topk", x)
    axis = axis_of("topk", x, axis)
    if not isinstance(k, Size):
        k = whole("topk: k", k, 0)
    if k > x.shape[axis]:
        raise UsageError(f"topk: found k = {k} for axis {axis} of {x!r}, which has fewer elements")
    found, places = _sorted("topk", x, axis, True)
    key = (*(slice(None),) * axis, slice(0, k))
    return found[key], places[key]


def partition(x: Any, kth: Any, axis: int | None = -1) -> Value:
    """The elements in an order with the kth where it is in `sort(x)`: all of them are."""
    return _sorted("partition", x, axis, False)[0]


def argpartition(x: Any, kth: Any, axis: int | None = -1) -> Value:
    """The order of `partition`."""
    return _sorted("argpartition", x, axis, False)[1]


def lexsort(keys: Any, axis: int = -1) -> Value:
    """The order by the last key, then by the one before it, and so on."""
    parts = list(keys) if not isinstance(keys, Value) else [keys[i] for i in range(len(keys))]
    if not parts:
        raise UsageError("lexsort: found no keys, expected at least one")
    order = argsort(parts[0], axis)
    for key in parts[1:]:
        moved = shapes.take_along_axis(value("lexsort", key, order), order, axis)
        order = shapes.take_along_axis(order, argsort(moved, axis), axis)
    return order


# --- quantiles ---

_METHODS = ("linear", "lower", "higher", "nearest", "midpoint")
_MEDIAN = "mean of the middle"


def _as_rows(operation: str, x: Any, axis: Axis) -> tuple[Value, list[int]]:
    """The reduced axes as one last axis, and which they were."""
    x = e.raised(floating(operation, x))
    axes = axes_of(operation, x, axis)
    gone = sorted(range(x.ndim) if axes is None else axes)
    kept = [a for a in range(x.ndim) if a not in gone]
    size: Any = 1
    for a in gone:
        size = size * x.shape[a]
    x = shapes.transpose(x, [*kept, *gone])
    lead = x.shape[: len(kept)]
    if x._fusion._known("==", size, 0, assumed=False):  # the quantile of no elements is NaN
        return creation.full([*lead, 1], math.nan, x.dtype, like=x), gone
    return shapes.reshape(x, [*lead, size]), gone


def _quantile(
    operation: str, x: Any, q: Any, axis: Axis, keepdims: bool, method: str, *, without_nan: bool
) -> Value:
    if method not in _METHODS and method is not _MEDIAN:
        raise UsageError(
            f"{operation}: found the method {method!r}, expected one of {', '.join(_METHODS)}"
        )
    first = floating(operation, x)
    plain = _numbers(q)
    if isinstance(plain, np.ndarray) and not ((plain >= 0) & (plain <= 1)).all():
        most = 100 if "percentile" in operation else 1
        raise UsageError(f"{operation}: found q outside [0, {most}], expected it within")
    rows, gone = _as_rows(operation, first, axis)
    ordered = sort(rows, -1)
    share = e.astype(value(operation, plain, rows), "float64")
    if share.ndim > 1:
        raise UsageError(f"{operation}: found q {share!r}, expected a number or one axis")
    lead = ordered.ndim - 1
    shares = shapes.reshape(share, (*(1,) * lead, -1))  # (1, ..., m)
    size = as_value(rows._fusion, rows.shape[-1], "float64")
    if without_nan:
        size = e.astype(reductions.sum(~e.is_nan(rows), -1, keepdims=True), "float64")
    last = e.maximum(size - 1.0, 0.0)
    at = shares * last
    at = at + creation.zeros((*ordered.shape[:-1], 1), "float64", like=at)
    low, high = (e.astype(f(at), "int64") for f in (e.floor, e.ceil))
    below, above = (shapes.take_along_axis(ordered, i, -1) for i in (low, high))
    part = e.astype(at - e.floor(at), ordered.dtype)
    result = _between(method, below, above, part, e.astype(low, "int64"))
    spoiled = size == 0 if without_nan else e.is_nan(ordered[..., -1:])
    result = e.where(spoiled, math.nan, result)
    result = e.astype(result, first.dtype)
    result = shapes.moveaxis(result, -1, 0)  # (m, ...)
    if reductions.kept(operation, keepdims):
        for a in gone:
            result = shapes.expand_dims(result, a + 1)
    return result if share.ndim == 1 else result[0]


def _numbers(q: Any) -> Any:
    return np.asarray(q, "float64") if isinstance(q, (list, tuple, float, int)) else q


def _between(method: str, below: Value, above: Value, part: Value, low: Value) -> Value:
    if method == "lower":
        return below
    if method == "higher":
        return above
    if method == "nearest":  # halves to the even place
        even = e.remainder(low, 2) == 0
        return e.where((part < 0.5) | ((part == 0.5) & even), below, above)
    if method == "midpoint":
        part = e.where(part == 0, part, 0.5)
    same = (below == above) & e.isinf(below)  # equal finite ones share the gradient
    apart = e.where(same, 0.0, above - below)
    if method is _MEDIAN:  # of one number and an infinite one it is infinite
        part = e.where(part != 0, 0.5, part)
        mean = e.where(part < 0.5, below, above - apart * 0.5)
        return e.where((part != 0) & ~e.is_finite(apart), below + above, mean)
    return e.where(part < 0.5, below + apart * part, above - apart * (1.0 - part))


def quantile(
    x: Any, q: Any, axis: Axis = None, keepdims: bool = False, *, method: str = "linear"
) -> Value:
    """The q-th quantiles (within [0, 1]) over `axis`, with straight lines between elements; an axis
    of q comes first. NaN if there is one."""
    return _quantile("quantile", x, q, axis, keepdims, method, without_nan=False)


def percentile(
    x: Any, q: Any, axis: Axis = None, keepdims: bool = False, *, method: str = "linear"
) -> Value:
    """As `quantile`, with q within [0, 100]."""
    return _quantile("percentile", x, _hundredth(q), axis, keepdims, method, without_nan=False)


def _hundredth(q: Any) -> Any:
    need_plain("percentile: q", q)
    return q / 100 if isinstance(q, Value) else np.asarray(q, "float64") / 100


def median(x: Any, axis: Axis = None, keepdims: bool = False) -> Value:
    """The middle element over `axis`, or the mean of the two in the middle; NaN if there is one."""
    return _quantile("median", x, 0.5, axis, keepdims, _MEDIAN, without_nan=False)


def nanquantile(
    x: Any, q: Any, axis: Axis = None, keepdims: bool = False, *, method: str = "linear"
) -> Value:
    """As `quantile`, without NaN; NaN where all are."""
    return _quantile("nanquantile", x, q, axis, keepdims, method, without_nan=True)


def nanpercentile(
    x: Any, q: Any, axis: Axis = None, keepdims: bool = False, *, method: str = "linear"
) -> Value:
    """As `percentile`, without NaN; NaN where all are."""
    return _quantile("nanpercentile", x, _hundredth(q), axis, keepdims, method, without_nan=True)


def nanmedian(x: Any, axis: Axis = None, keepdims: bool = False) -> Value:
    """As `median`, without NaN; NaN where all are."""
    return _quantile("nanmedian", x, 0.5, axis, keepdims, _MEDIAN, without_nan=True)


# --- drawn at random ---


def random_normal(seed: Any, shape: Any) -> Value:
    """Standard normal float32 from an int64 seed of shape (2,), by Box and Muller; each call draws
    new numbers."""
    radius = e.sqrt(e.log(1.0 - creation.random_uniform(seed, shape)) * -2.0)
    return radius * e.cos(creation.random_uniform(seed, shape) * (2 * math.pi))


def random_categorical(seed: Any, logits: Any, axis: int = -1) -> Value:
    """An index along `axis` for each row, drawn with the probabilities softmax(logits)."""
    x = e.raised(floating("random_categorical", value("random_categorical", logits, seed)))
    noise = -e.log(-e.log(creation.random_uniform(seed, x.shape)))
    return reductions.argmax(x + e.astype(noise, x.dtype), axis_of("random_categorical", x, axis))


def random_bernoulli(seed: Any, probability: Any, shape: Any) -> Value:
    """True with the probability that is given."""
    return creation.random_uniform(seed, shape) < probability


def random_permutation(seed: Any, n: Any) -> Value:
    """0, 1, ... n - 1 in random order."""
    return argsort(creation.random_uniform(seed, (n,)))


__all__ = public(globals())
