"""Statistics: reductions that leave NaN out, weighted means, covariance, counts by value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._dtypes import DTypeLike, is_float
from .._errors import UsageError
from .._numbers import need_plain, real, whole
from .._program.lift import floating, lifted, make, value
from .._program.sizes import Size
from .._program.value import Value
from . import creation, products, public, shapes
from . import elementwise as e
from . import reductions as r
from .shapes import Axis, axis_of

# --- without NaN ---


def _numbers(operation: str, x: Any) -> tuple[Value, Value]:
    """x in floats, and where it is a number."""
    x = value(operation, x)
    if not is_float(x.dtype):
        return x, creation.ones_like(x, "bool")
    return x, ~e.is_nan(x)


def nansum(
    x: Any, axis: Axis = None, keepdims: bool = False, *, dtype: DTypeLike | None = None
) -> Value:
    """The sum over `axis` without NaN."""
    x, mask = _numbers("nansum", x)
    return r.sum(x, axis, keepdims, dtype=dtype, where=mask)


def nanprod(
    x: Any, axis: Axis = None, keepdims: bool = False, *, dtype: DTypeLike | None = None
) -> Value:
    """The product over `axis` without NaN."""
    x, mask = _numbers("nanprod", x)
    return r.prod(x, axis, keepdims, dtype=dtype, where=mask)


def _nan_extreme(operation: str, x: Any, axis: Axis, keepdims: bool) -> Value:
    x, mask = _numbers(operation, x)
    reduce, worst = (r.max, -math.inf) if operation == "nanmax" else (r.min, math.inf)
    if not is_float(x.dtype):
        return reduce(x, axis, keepdims)
    found = reduce(e.where(mask, x, worst), axis, keepdims)
    return e.where(r.any(mask, axis, keepdims), found, math.nan)


def nanmax(x: Any, axis: Axis = None, keepdims: bool = False) -> Value:
    """The greatest element over `axis` that is not NaN; NaN where all are."""
    return _nan_extreme("nanmax", x, axis, keepdims)


def nanmin(x: Any, axis: Axis = None, keepdims: bool = False) -> Value:
    """The least element over `axis` that is not NaN; NaN where all are."""
    return _nan_extreme("nanmin", x, axis, keepdims)


def nanmean(x: Any, axis: Axis = None, keepdims: bool = False) -> Value:
    """The mean over `axis` without NaN."""
    x, mask = _numbers("nanmean", floating("nanmean", x))
    return r.masked_mean(x, mask, axis, keepdims)


def nanvar(x: Any, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> Value:
    """The variance over `axis` without NaN."""
    x, mask = _numbers("nanvar", floating("nanvar", x))
    return r.masked_var(x, mask, axis, keepdims, ddof)


def nanstd(x: Any, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> Value:
    """The standard deviation over `axis` without NaN."""
    return e.sqrt(nanvar(x, axis, keepdims, ddof))


def nanargmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Value:
    """The index of the first greatest element that is not NaN; 0 where all are."""
    x, mask = _numbers("nanargmax", floating("nanargmax", x))
    return r.argmax(e.where(mask, x, -math.inf), axis, keepdims)


def nanargmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Value:
    """The index of the first least element that is not NaN; 0 where all are."""
    x, mask = _numbers("nanargmin", floating("nanargmin", x))
    return r.argmin(e.where(mask, x, math.inf), axis, keepdims)


# --- weights, covariance ---


def average(
    x: Any, axis: Axis = None, weights: Any = None, returned: bool = False, keepdims: bool = False
) -> Any:
    """The mean over `axis`, weighted if there are weights: of the shape of x, or one for each
    element along `axis`. With `returned` the sum of the weights as well."""
    if weights is None:
        x = floating("average", x)
        result = r.mean(x, axis, keepdims)
        total = creation.zeros_like(result) + r.count(x, axis, result.dtype)
        return (result, total) if returned else result
    x, w = lifted("average", [x, weights], floating=True)
    if w.ndim != x.ndim:
        if w.ndim != 1 or not isinstance(axis, int):
            raise UsageError(
                f"average: found weights {w!r} for {x!r}, expected the same shape, or one axis "
                "beside an axis that is a number"
            )
        at = axis_of("average", x, axis)
        w = shapes.reshape(w, (*(1,) * at, w.shape[0], *(1,) * (x.ndim - 1 - at)))
        w = creation.zeros_like(x) + w
    total = r.sum(w, axis, keepdims)
    result = r.sum(x * w, axis, keepdims) / total
    return (result, total) if returned else result


def cov(m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: Any = None) -> Value:
    """The covariance of the rows of m, or of its columns; those of y are further ones."""
    x = _observations("cov", m, rowvar)
    if y is not None:
        x = shapes.concatenate([x, _observations("cov", y, rowvar)], 0)
    ddof = (0 if bias else 1) if ddof is None else ddof
    centred = x - r.mean(x, 1, keepdims=True)
    scale = 1.0 / e.maximum(r.count(x, 1, x.dtype) - ddof, 0.0)
    result = products.matmul(centred, shapes.transpose(centred)) * scale
    axes = [i for i in (0, 1) if isinstance(result.shape[i], int) and result.shape[i] == 1]
    return shapes.squeeze(result, axes) if axes else result


def _observations(operation: str, m: Any, rowvar: bool) -> Value:
    x = floating(operation, m)
    if x.ndim > 2:
        raise UsageError(f"{operation}: found {x!r}, expected one or two axes")
    if x.ndim < 2:
        return shapes.reshape(x, (1, -1))
    return x if rowvar else shapes.transpose(x)


def corrcoef(x: Any, y: Any = None, rowvar: bool = True) -> Value:
    """Pearson's correlation of the rows of x, or of its columns, within [-1, 1]."""
    c = cov(x, y, rowvar)
    if c.ndim == 0:
        return c / c
    n = c.shape[0]
    diagonal = r.sum(e.where(eye_mask(c), c, 0), 1)
    scale = e.sqrt(diagonal)
    c = c / shapes.reshape(scale, (n, 1)) / scale
    return e.clip(c, -1.0, 1.0)


def eye_mask(x: Value, k: int = 0) -> Value:
    """Where the last two axes are on the diagonal k."""
    row = creation.arange(x.shape[-2], like=x)
    return shapes.expand_dims(row, 1) + k == creation.arange(x.shape[-1], like=x)


# --- counts by value ---


def searchsorted(a: Any, v: Any, side: str = "left") -> Value:
    """Where each v is to stand in the ascending a (int64): before equal ones, or after them.

    It compares each v with all of a up to 32 elements; of more it halves the rest in each step.
    """
    if side not in ("left", "right"):
        raise UsageError(f"searchsorted: found the side {side!r}, expected 'left' or 'right'")
    x, y = lifted("searchsorted", [a, v])
    if x.ndim != 1:
        raise UsageError(f"searchsorted: found {x!r}, expected one axis")
    if x._fusion._known("<=", x.shape[0], _FEW, True):
        return r.sum(_stands_before(x, shapes.expand_dims(y, y.ndim), side), -1)
    found, size, bits = creation.zeros_like(y, "int64"), x.shape[0], 0
    while x._fusion._known(">=", size, 1 << bits, True):
        bits += 1
    for bit in range(bits - 1, -1, -1):
        beyond = found + (1 << bit)
        element = make("take", [x, e.minimum(beyond, size) - 1], 0)
        found = e.where(_stands_before(element, y, side) & (beyond <= size), beyond, found)
    return found


_FEW = 32
"""So many elements are compared with all others rather than sorted or searched."""


def _stands_before(x: Value, wanted: Value, side: str) -> Value:
    before = x < wanted if side == "left" else x <= wanted
    if not is_float(x.dtype):
        return before
    last = e.is_nan(wanted)  # NaN comes last
    return before | (last & ~e.is_nan(x) if side == "left" else last)


def digitize(x: Any, bins: Any, right: bool = False) -> Value:
    """The bin of each x: bins[i - 1] <= x < bins[i], with the other end closed for `right`.

    The edges rise or fall. Whether they do is seen from numbers; values are taken as rising.
    """
    side = "left" if right else "right"
    need_plain("digitize: bins", bins)
    edges = np.asarray(bins) if isinstance(bins, (list, tuple, np.ndarray)) else None
    if edges is not None and edges.ndim == 1 and edges.size > 1 and edges[0] > edges[-1]:
        return len(edges) - searchsorted(edges[::-1].copy(), x, side)
    return searchsorted(bins, x, side)


def bincount(x: Any, weights: Any = None, minlength: Any = 0, *, length: Any = None) -> Value:
    """How often 0, 1, ... length - 1 are among the elements (int64), or the sums of their weights.

    `length` is needed, since shapes do not depend on content; an element beyond it is an error of
    the run. NumPy's `minlength` is taken as the length where there is no other.
    """
    at = shapes.ravel(value("bincount", x, weights))
    if length is None:
        length = minlength
    if isinstance(length, int) and length == 0:
        raise UsageError(
            "bincount: found no length, expected bincount(x, length=n): the shape of a result "
            "cannot depend on the content of arrays"
        )
    if at.dtype not in ("int32", "int64"):
        raise UsageError(f"bincount: found {at.dtype}, expected integers")
    if weights is None:
        added = creation.ones_like(at, "int64")
    else:
        added = shapes.ravel(value("bincount", weights, at))
    return shapes.scatter_add(added, at, 0, length)


def histogram_bin_edges(x: Any, bins: Any = 10, range: Any = None) -> Any:
    """The edges of equal bins between the least and the greatest element, or within `range`."""
    if not isinstance(bins, (int, np.integer, Size)):
        return bins
    x = floating("histogram_bin_edges", x)
    if range is None:
        low, high = r.min(x), r.max(x)
        flat = low == high
        low, high = e.where(flat, low - 0.5, low), e.where(flat, high + 0.5, high)
    else:
        first, last = (real("histogram: an end of the range", end) for end in range)
        if not -math.inf < first <= last < math.inf:
            raise UsageError(
                f"histogram: found the range ({first}, {last}), expected finite rising ends"
            )
        if first == last:
            first, last = first - 0.5, last + 0.5
        low, high = (creation.full((), end, x.dtype, like=x) for end in (first, last))
    return creation.linspace(low, high, int(bins) + 1)


def histogram(
    x: Any, bins: Any = 10, range: Any = None, density: bool = False, weights: Any = None
) -> tuple[Value, Value]:
    """How many elements are in each bin, the last one closed at both ends, and the edges."""
    x = shapes.ravel(floating("histogram", x))
    edges = value("histogram", histogram_bin_edges(x, bins, range), x)
    if edges.ndim != 1:
        raise UsageError(f"histogram: found the bins {edges!r}, expected one axis")
    low, high, bins = edges[:-1], edges[1:], edges.shape[0] - 1
    weight = None if weights is None else shapes.ravel(value("histogram", weights, x))
    if x._fusion._known("<=", bins, _FEW, True):
        column = shapes.expand_dims(x, 1)
        last = creation.arange(bins, like=x) == bins - 1
        inside = (column >= low) & ((column < high) | (last & (column == high)))
        counts = r.sum(inside if weight is None else e.where(inside, weight[:, None], 0), 0)
    else:
        at = searchsorted(edges, x, "right") - 1
        at = e.where(x == edges[-1], bins - 1, at)
        outside = (at < 0) | e.is_nan(x)
        at = e.where(outside, bins, e.minimum(at, bins))
        counts = bincount(at, weight, length=bins + 1)[:-1]
    if density:
        counts = counts / (high - low) / r.sum(counts)
    return counts, edges


def isin(x: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False) -> Value:
    """Whether each element is among `test_elements`."""
    x, y = lifted("isin", [x, test_elements])
    x, y = (e.astype(v, "int32") if v.dtype == "bool" else v for v in (x, shapes.ravel(y)))
    if x._fusion._known("<=", y.shape[0], _FEW, True):
        found = r.any(shapes.expand_dims(x, x.ndim) == y, -1)
    else:
        y = make("sort", [y], 0, 0)
        at = e.minimum(searchsorted(y, x), y.shape[0] - 1)
        found = make("take", [y, at], 0) == x
    return ~found if invert else found


# --- along an axis ---


def diff(x: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Value:
    """x[i + 1] - x[i] along `axis`, n times (at most 64); `prepend` and `append` are put around x
    before."""
    n = whole("diff: n", n, 0, 64)
    x = value("diff", x, prepend, append)
    axis = axis_of("diff", x, axis)
    parts = [_beside(x, part, axis) for part in (prepend, x, append) if part is not None]
    x = shapes.concatenate(parts, axis) if len(parts) > 1 else x
    before = (slice(None),) * axis
    for _ in range(n):
        later, earlier = x[(*before, slice(1, None))], x[(*before, slice(None, -1))]
        x = later != earlier if x.dtype == "bool" else later - earlier
    return x


def _beside(x: Value, part: Any, axis: int) -> Value:
    if isinstance(part, Value) and part.ndim == x.ndim:
        return part
    if np.ndim(part) == 0 or (isinstance(part, Value) and part.ndim == 0):
        sizes = [*x.shape[:axis], 1, *x.shape[axis + 1 :]]
        return shapes.broadcast_to(e.astype(value("diff", part, x), x.dtype), sizes)
    return value("diff", part, x)


def ediff1d(x: Any, to_end: Any = None, to_begin: Any = None) -> Value:
    """The differences of neighbours of all elements, with `to_begin` and `to_end` around."""
    middle = diff(shapes.ravel(x))
    parts = [shapes.ravel(value("ediff1d", p, middle)) for p in (to_begin,) if p is not None]
    parts.append(middle)
    parts += [shapes.ravel(value("ediff1d", p, middle)) for p in (to_end,) if p is not None]
    return shapes.concatenate(parts) if len(parts) > 1 else middle


def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Value:
    """The integral of y along `axis` by trapezoids, at the places x or `dx` apart."""
    y = floating("trapezoid", y)
    axis = axis_of("trapezoid", y, axis)
    before = (slice(None),) * axis
    means = (y[(*before, slice(1, None))] + y[(*before, slice(None, -1))]) * 0.5
    if x is None:
        return r.sum(means, axis) * dx
    places = floating("trapezoid", value("trapezoid", x, y))
    if places.ndim == 1:
        steps = shapes.reshape(diff(places), (-1, *(1,) * (y.ndim - 1 - axis)))
    else:
        steps = diff(places, axis=axis)
    return r.sum(means * steps, axis)


def gradient(f: Any, *spacing: Any, axis: Axis = None) -> Any:
    """Central differences inside, one-sided ones at the ends, along each axis; the spacing is one
    number, or one for each axis."""
    x = floating("gradient", f)
    axes = shapes.axes_of("gradient", x, axis)
    axes = list(range(x.ndim)) if axes is None else axes
    steps = list(spacing) or [1.0]
    steps = steps * len(axes) if len(steps) == 1 else steps
    if len(steps) != len(axes) or any(np.ndim(s) for s in steps):
        raise UsageError("gradient: expected one number as the spacing, or one for each axis")
    results = []
    for a, step in zip(axes, steps, strict=True):
        if x.shape[a] < 2:
            raise UsageError(f"gradient: axis {a} of {x!r} is too short, expected two elements")
        at = (slice(None),) * a
        first = x[(*at, slice(1, 2))] - x[(*at, slice(0, 1))]
        last = x[(*at, slice(-1, None))] - x[(*at, slice(-2, -1))]
        middle = (x[(*at, slice(2, None))] - x[(*at, slice(None, -2))]) * 0.5
        results.append(shapes.concatenate([first, middle, last], a) / step)
    return results[0] if len(results) == 1 else results


def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None) -> Value:
    """fp at x by straight lines between the rising xp; `left` and `right` beyond its ends."""
    x, xp, fp = lifted("interp", [x, xp, fp], floating=True)
    n = xp.shape[0]
    at = e.clip(searchsorted(xp, x, "right"), 1, n - 1)
    x0, x1 = shapes.take(xp, at - 1, 0), shapes.take(xp, at, 0)
    f0, f1 = shapes.take(fp, at - 1, 0), shapes.take(fp, at, 0)
    apart = x1 - x0
    flat = apart == 0
    slope = (f1 - f0) / e.where(flat, 1.0, apart)
    result = f0 + slope * (x - x0)
    result = e.where(e.is_nan(result), f1 + slope * (x - x1), result)  # f0 is infinite
    known = e.where(x == x1, f1, e.where((x == x0) | (f0 == f1), f0, math.nan))
    result = e.where(e.is_nan(result), known, result)
    result = e.where(flat, f0, result)
    result = e.where(x > xp[-1], fp[-1] if right is None else right, result)
    result = e.where(x < xp[0], fp[0] if left is None else left, result)
    return e.where(e.is_nan(x), x, result)


__all__ = [name for name in public(globals()) if name != "eye_mask"]
