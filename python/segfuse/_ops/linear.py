"""Products over axes, norms and polynomials: compositions of `matmul` and sums."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._dtypes import DTypeLike, is_float
from .._errors import UsageError
from .._numbers import whole
from .._program.lift import floating, is_one, lifted, same_size, shape_text, value
from .._program.value import Value
from . import arranged, creation, products, public, reductions, shapes
from . import elementwise as e
from .shapes import Axis, axes_of, axis_of


def dot(a: Any, b: Any) -> Value:
    """The sum over the last axis of a and the last but one of b; a product with a number."""
    x, y = lifted("dot", [a, b])
    if x.ndim == 0 or y.ndim == 0:
        return x * y
    return tensordot(x, y, ([x.ndim - 1], [max(y.ndim - 2, 0)]))


def inner(a: Any, b: Any) -> Value:
    """The sum over the last axes of both."""
    x, y = lifted("inner", [a, b])
    if x.ndim == 0 or y.ndim == 0:
        return x * y
    return tensordot(x, y, ([x.ndim - 1], [y.ndim - 1]))


def vdot(a: Any, b: Any) -> Value:
    """The sum over all elements of the product."""
    x, y = lifted("vdot", [a, b])
    return dot(shapes.ravel(x), shapes.ravel(y))


def last_trace(x: Any, *, offset: int = 0, dtype: DTypeLike | None = None) -> Value:
    """NumPy's linalg.trace: of the last two axes."""
    return reductions.sum(last_diagonal(x, offset=offset), -1, dtype=dtype)


def last_diagonal(x: Any, *, offset: int = 0) -> Value:
    """NumPy's linalg.diagonal: of the last two axes."""
    return arranged.diagonal(x, offset, -2, -1)


def vecdot(a: Any, b: Any, axis: int = -1) -> Value:
    """The sum over one axis of the product."""
    x, y = lifted("vecdot", [a, b])
    product = shapes.moveaxis(x, axis, -1) * shapes.moveaxis(y, axis, -1)
    return reductions.sum(product, -1, dtype=product.dtype)


def matvec(a: Any, b: Any) -> Value:
    """Matrices (..., M, N) times vectors (..., N)."""
    x, y = lifted("matvec", [a, b])
    return shapes.squeeze(products.matmul(x, shapes.expand_dims(y, y.ndim)), -1)


def vecmat(a: Any, b: Any) -> Value:
    """Vectors (..., M) times matrices (..., M, N)."""
    x, y = lifted("vecmat", [a, b])
    return shapes.squeeze(products.matmul(shapes.expand_dims(x, -1 + x.ndim), y), -2)


def outer(a: Any, b: Any) -> Value:
    """The product of each element of a with each of b."""
    x, y = lifted("outer", [a, b])
    return shapes.reshape(x, (-1, 1)) * shapes.reshape(y, (1, -1))


def kron(a: Any, b: Any) -> Value:
    """Each element of a times b, block by block."""
    x, y = lifted("kron", [a, b])
    rank = max(x.ndim, y.ndim)
    x = shapes.reshape(x, (*(1,) * (rank - x.ndim), *x.shape))
    y = shapes.reshape(y, (*(1,) * (rank - y.ndim), *y.shape))
    wide_x = shapes.reshape(x, [s for size in x.shape for s in (size, 1)])
    wide_y = shapes.reshape(y, [s for size in y.shape for s in (1, size)])
    return shapes.reshape(wide_x * wide_y, [p * q for p, q in zip(x.shape, y.shape, strict=True)])


def cross(a: Any, b: Any, axis: int = -1) -> Value:
    """The vector product along `axis`, which has 3 elements."""
    x, y = lifted("cross", [a, b])
    x, y = shapes.moveaxis(x, axis, -1), shapes.moveaxis(y, axis, -1)
    if int(x.shape[-1]) != 3 or int(y.shape[-1]) != 3:
        raise UsageError(f"cross: found {x!r} and {y!r}, expected vectors of 3 elements")
    parts = [x[..., i] * y[..., j] - x[..., j] * y[..., i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return shapes.moveaxis(shapes.stack(parts, -1), -1, axis)


def tensordot(a: Any, b: Any, axes: Any = 2) -> Value:
    """The sum over pairs of axes of the product: the last `axes` of a with the first of b, or the
    two lists of axes."""
    x, y = lifted("tensordot", [a, b])
    if isinstance(axes, (int, np.integer)):
        n = int(axes)
        if not 0 <= n <= min(x.ndim, y.ndim):
            raise UsageError(
                f"tensordot: found axes={n}, expected 0 to {min(x.ndim, y.ndim)} for operands of "
                f"{x.ndim} and {y.ndim} axes"
            )
        first, second = list(range(x.ndim - n, x.ndim)), list(range(n))
    else:
        first, second = ([v] if isinstance(v, int) else list(v) for v in axes)
        first = [axis_of("tensordot", x, v) for v in first]
        second = [axis_of("tensordot", y, v) for v in second]
    if len(first) != len(second):
        raise UsageError(
            f"tensordot: found the axes {axes}, expected as many of one as of the other"
        )
    for i, j in zip(first, second, strict=True):
        if not same_size(x._fusion, x.shape[i], y.shape[j]):
            raise UsageError(
                f"tensordot: axis {i} of {shape_text(x._fusion, x.shape)} and axis {j} of "
                f"{shape_text(x._fusion, y.shape)} differ"
            )
    names_x = list(range(x.ndim))
    names_y = [x.ndim + j for j in range(y.ndim)]
    for i, j in zip(first, second, strict=True):
        names_y[j] = names_x[i]
    kept = [n for i, n in enumerate(names_x) if i not in first]
    kept += [n for j, n in enumerate(names_y) if j not in second]
    return _contracted(x, names_x, y, names_y, kept)[0]


# --- einsum ---


def einsum(equation: Any, *operands: Any, optimize: Any = None) -> Value:
    """The sum over all indices that the result does not have, in NumPy's notation.

    Two operands at a time become one matrix product: from left to right, unless `optimize` asks
    NumPy for a better order.
    """
    if not isinstance(equation, str):
        raise UsageError(f"einsum: found {equation!r}, expected an equation such as 'ij,jk->ik'")
    values = lifted("einsum", list(operands))
    inputs, result = _parsed(equation.replace(" ", ""), values)
    terms = [_without_repeats(x, names) for x, names in zip(values, inputs, strict=True)]
    for pair in _order(equation, terms, optimize):
        chosen = [terms[i] for i in pair]
        terms = [t for i, t in enumerate(terms) if i not in pair]
        needed = set(result).union(*(names for _, names in terms))
        terms.append(_product(chosen, needed))
    x, names = terms[0]
    x, names = _summed(x, names, set(result))
    return shapes.transpose(x, [names.index(n) for n in result]) if names != result else x


def _order(equation: str, terms: list[Any], optimize: Any) -> list[tuple[int, ...]]:
    if not optimize or len(terms) < 3 or "." in equation:
        return [(0, 1)] if len(terms) == 2 else [(0,)] if len(terms) == 1 else _left(len(terms))
    numbers = [np.empty([int(s) for s in x.shape]) for x, _ in terms]
    texts = ["".join(names) for _, names in terms]
    path = np.einsum_path(",".join(texts) + "->" + _result_text(equation), *numbers)[0]
    return [tuple(sorted(p)) for p in path[1:]]


def _left(count: int) -> list[tuple[int, ...]]:
    """The first two, then their product (which stands last) with the next."""
    first: list[tuple[int, ...]] = [(0, 1)]
    return first + [(0, count - 1 - n) for n in range(1, count - 1)]


def _result_text(equation: str) -> str:
    text = equation.replace(" ", "")
    if "->" in text:
        return text.split("->")[1]
    letters = text.replace(",", "")
    return "".join(sorted(c for c in set(letters) if letters.count(c) == 1))


def _parsed(text: str, values: list[Value]) -> tuple[list[list[str]], list[str]]:
    """The names of the axes of each operand and of the result; those of "..." are "0", "1", ..."""
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(values):
        raise UsageError(
            f"einsum: found {len(values)} operands for {text!r}, expected {len(parts)}"
        )
    hidden = [
        x.ndim - len(p.replace("...", "")) if "..." in p else 0
        for x, p in zip(values, parts, strict=True)
    ]
    most = max(hidden, default=0)
    inputs = []
    for x, part, n in zip(values, parts, hidden, strict=True):
        names = _names(text, part, [str(i) for i in range(most - n, most)] if n > 0 else [])
        if len(names) != x.ndim or n < 0:
            raise UsageError(
                f"einsum: found {x!r} for {part!r} of {text!r}, which has another rank"
            )
        inputs.append(names)
    every = [n for names in inputs for n in names]
    if arrow:
        result = _names(text, right, [str(i) for i in range(most)] if "..." in right else [])
    else:
        result = [str(i) for i in range(most)]
        result += sorted(n for n in set(every) if n.isalpha() and every.count(n) == 1)
    for name in result:
        if name not in every or result.count(name) > 1:
            raise UsageError(
                f"einsum: found the index {name!r} in the result of {text!r}, expected indices of "
                "operands, each once"
            )
    return inputs, result


def _names(text: str, part: str, hidden: list[str]) -> list[str]:
    before, dots, after = part.partition("...")
    if not (before + after).isalpha() and before + after:
        raise UsageError(f"einsum: found {part!r} in {text!r}, expected letters, ',', '...', '->'")
    return [*before, *(hidden if dots else []), *after]


def _without_repeats(x: Value, names: list[str]) -> tuple[Value, list[str]]:
    """The diagonal of axes that have one name."""
    while len(set(names)) < len(names):
        name = next(n for n in names if names.count(n) > 1)
        i = names.index(name)
        j = names.index(name, i + 1)
        if x.shape[i] != x.shape[j]:
            raise UsageError(
                f"einsum: found {x!r} with the index {name!r} for axes of {x.shape[i]} and "
                f"{x.shape[j]} elements, expected equal ones"
            )
        order = [a for a in range(x.ndim) if a not in (i, j)]
        x = arranged.diagonal(x, 0, i, j)
        names = [*(names[a] for a in order), name]
    return x, names


def _summed(x: Value, names: list[str], kept: set[str]) -> tuple[Value, list[str]]:
    axes = tuple(i for i, n in enumerate(names) if n not in kept)
    if not axes:
        return x, names
    total = reductions.sum(x, axes, dtype=x.dtype) if x.dtype != "bool" else _any(x, axes)
    return total, [n for n in names if n in kept]


def _any(x: Value, axes: tuple[int, ...]) -> Value:
    return reductions.any(x, axes)


def _product(terms: list[Any], needed: set[str]) -> tuple[Value, list[str]]:
    if len(terms) == 1:
        return terms[0]
    (x, names_x), (y, names_y) = terms
    half = x.dtype if x.dtype == y.dtype and x.dtype in ("float16", "bfloat16") else None
    if half and (set(names_x) ^ set(names_y)) - needed:  # what is summed first is not rounded
        x, y = e.astype(x, "float32"), e.astype(y, "float32")
    x, names_x = _summed(x, names_x, needed | set(names_y))
    y, names_y = _summed(y, names_y, needed | set(names_x))
    kept = [n for n in names_x if n in needed] + [
        n for n in names_y if n in needed and n not in names_x
    ]
    product, kept = _contracted(x, names_x, y, names_y, kept)
    return e.astype(product, half) if half else product, kept


def _contracted(
    x: Value, names_x: list[Any], y: Value, names_y: list[Any], kept: list[Any]
) -> tuple[Value, list[Any]]:
    """The product of both, summed over the names that are not kept: one matmul of (batch, rows,
    summed) and (batch, summed, columns), or elementwise where nothing is summed."""
    x, y = _stretched(x, names_x, y, names_y), _stretched(y, names_y, x, names_x)
    both = [n for n in names_x if n in names_y]
    summed = [n for n in both if n not in kept]
    if not summed or not is_float(x.dtype):
        return _elementwise_product(x, names_x, y, names_y, kept, summed)
    batch = [n for n in both if n in kept]
    rows = [n for n in names_x if n not in both]
    columns = [n for n in names_y if n not in both]
    size = dict(zip(names_x, x.shape, strict=True)) | dict(zip(names_y, y.shape, strict=True))

    def merged(v: Value, names: list[Any], *groups: list[Any]) -> Value:
        order = [names.index(n) for group in groups for n in group]
        if order != list(range(v.ndim)):
            v = shapes.transpose(v, order)
        sizes = [_total([size[n] for n in group]) for group in groups[1:]]
        lead = [size[n] for n in groups[0]]
        whole = all(len(group) == 1 for group in groups[1:])
        return v if whole else shapes.reshape(v, [*lead, *sizes])

    a = merged(x, names_x, batch, rows, summed)
    b = merged(y, names_y, batch, summed, columns)
    result = products.matmul(a, b)
    names = [*batch, *rows, *columns]
    wanted = [size[n] for n in names]
    if result.ndim != len(names) or len(rows) != 1 or len(columns) != 1:
        result = shapes.reshape(result, wanted)
    order = [names.index(n) for n in kept]
    return (shapes.transpose(result, order) if order != sorted(order) else result), kept


def _total(sizes: list[Any]) -> Any:
    total: Any = 1
    for s in sizes:
        total = total * s
    return total


def _stretched(x: Value, names_x: list[Any], y: Value, names_y: list[Any]) -> Value:
    """x with its axes of size 1 stretched to those of the same name of y."""
    wanted = list(x.shape)
    for i, n in enumerate(names_x):
        if n not in names_y:
            continue
        other = y.shape[names_y.index(n)]
        if is_one(wanted[i]) and not is_one(other):
            wanted[i] = other
        elif not is_one(other) and not same_size(x._fusion, wanted[i], other):
            raise UsageError(
                f"einsum: found the sizes {wanted[i]} and {other} for the index {n!r}, expected "
                "one size"
            )
    return x if tuple(wanted) == tuple(x.shape) else shapes.broadcast_to(x, wanted)


def _elementwise_product(
    x: Value, names_x: list[Any], y: Value, names_y: list[Any], kept: list[Any], summed: list[Any]
) -> tuple[Value, list[Any]]:
    names = [*kept, *summed]

    def aligned(v: Value, own: list[Any]) -> Value:
        v = shapes.transpose(v, [own.index(n) for n in names if n in own])
        for i, n in enumerate(names):
            if n not in own:
                v = shapes.expand_dims(v, i)
        return v

    result = aligned(x, names_x)
    result = result & aligned(y, names_y) if x.dtype == "bool" else result * aligned(y, names_y)
    if not summed:
        return result, kept
    return _summed(result, names, set(kept))


# --- norms ---


def norm(x: Any, ord: Any = None, axis: Axis = None, keepdims: bool = False) -> Value:
    """NumPy's linalg.norm: Euclid's of all elements without `ord`; along one axis 0, inf, -inf or a
    number p; of matrices along two "fro", inf, -inf, 1 and -1."""
    x = floating("norm", x)
    if axis is None and ord is None:
        return _euclid(x, None, keepdims)
    axes = axes_of("norm", x, axis)
    axes = list(range(x.ndim)) if axes is None else axes
    if len(axes) == 1:
        return _vector_norm(x, ord, axes[0], keepdims)
    if len(axes) != 2:
        raise UsageError(f"norm: found {x!r} and the axes {axes}, expected one or two axes")
    if ord in (None, "fro"):
        return _euclid(x, tuple(axes), keepdims)
    if ord not in (1, -1, math.inf, -math.inf):
        raise UsageError(f"norm: found ord={ord!r} of matrices, expected 'fro', 1, -1, inf or -inf")
    row, column = axes
    added, kept = (row, column) if abs(ord) == 1 else (column, row)
    sums = reductions.sum(e.abs(x), added, keepdims=True)
    result = (reductions.max if ord > 0 else reductions.min)(sums, kept, keepdims=True)
    return result if keepdims else shapes.squeeze(result, (row, column))


def _euclid(x: Value, axis: Any, keepdims: bool) -> Value:
    wide = e.raised(x)
    return e.astype(e.sqrt(reductions.sum(wide * wide, axis, keepdims)), x.dtype)


def _vector_norm(x: Value, ord: Any, axis: int, keepdims: bool) -> Value:
    if ord is None or ord == 2:
        return _euclid(x, axis, keepdims)
    size = e.abs(x)
    if ord == math.inf:
        return reductions.max(size, axis, keepdims)
    if ord == -math.inf:
        return reductions.min(size, axis, keepdims)
    if ord == 0:
        return e.astype(reductions.sum(x != 0, axis, keepdims), x.dtype)
    if ord == 1:
        return reductions.sum(size, axis, keepdims)
    if not isinstance(ord, (int, float)):
        raise UsageError(f"norm: found ord={ord!r} of vectors, expected a number")
    return e.power(reductions.sum(e.power(size, ord), axis, keepdims), 1.0 / ord)


# --- polynomials and convolutions ---


def _coefficients(operation: str, p: Value) -> Value:
    if p.ndim != 1:
        raise UsageError(f"{operation}: found {p!r}, expected a vector of coefficients")
    return p


def polyval(p: Any, x: Any) -> Value:
    """p[0] * x**(n - 1) + ... + p[n - 1], by Horner's scheme."""
    p, x = lifted("polyval", [p, x])
    p = _coefficients("polyval", p)
    result = creation.zeros_like(x)
    for i in range(int(p.shape[0])):
        result = result * x + p[i]
    return result


def _longer(operation: str, a: Any, b: Any) -> tuple[Value, Value]:
    x, y = (_coefficients(operation, v) for v in lifted(operation, [a, b]))
    n = max(int(x.shape[0]), int(y.shape[0]))
    x = shapes.pad(x, [(n - int(x.shape[0]), 0)])
    return x, shapes.pad(y, [(n - int(y.shape[0]), 0)])


def polyadd(a: Any, b: Any) -> Value:
    """The coefficients of the sum of two polynomials."""
    x, y = _longer("polyadd", a, b)
    return x + y


def polysub(a: Any, b: Any) -> Value:
    """The coefficients of the difference of two polynomials."""
    x, y = _longer("polysub", a, b)
    return x - y


def polymul(a: Any, b: Any) -> Value:
    """The coefficients of the product of two polynomials."""
    return convolve(a, b)


def polyder(p: Any, m: int = 1) -> Value:
    """The coefficients of the m-th derivative."""
    p = _coefficients("polyder", value("polyder", p))
    for _ in range(whole("polyder: m", m, 0)):
        n = int(p.shape[0])
        p = p[:-1] * np.arange(n - 1, 0, -1).astype(p.dtype if p.dtype != "bfloat16" else "float32")
    return p


def polyint(p: Any, m: int = 1) -> Value:
    """The coefficients of the m-th integral with 0 as each constant."""
    p = _coefficients("polyint", floating("polyint", p))
    for _ in range(whole("polyint: m", m, 0)):
        n = int(p.shape[0])
        scale = (1.0 / np.arange(n, 0, -1)).astype("float64" if p.dtype == "float64" else "float32")
        p = shapes.pad(e.astype(p * scale, p.dtype), [(0, 1)])
    return p


def convolve(a: Any, v: Any, mode: str = "full") -> Value:
    """The discrete convolution of two vectors."""
    x, y = lifted("convolve", [a, v])
    if x.ndim == y.ndim == 1 and x.shape[0] < y.shape[0]:
        x, y = y, x
    return _slid("convolve", x, shapes.flip(y), mode)


def correlate(a: Any, v: Any, mode: str = "valid") -> Value:
    """The sums of a[n + k] * v[k] of two vectors."""
    x, y = lifted("correlate", [a, v])
    return _slid("correlate", x, y, mode)


def _slid(operation: str, x: Value, y: Value, mode: str) -> Value:
    if x.ndim != 1 or y.ndim != 1 or mode not in ("full", "same", "valid"):
        raise UsageError(
            f"{operation}: found {x!r}, {y!r} and the mode {mode!r}, expected two vectors and "
            "'full', 'same' or 'valid'"
        )
    long, short = int(x.shape[0]), int(y.shape[0])
    if long < short:  # the shorter one slides
        return shapes.flip(_slid(operation, y, x, mode))
    before = {"full": short - 1, "same": short // 2, "valid": 0}[mode]
    after = {"full": short - 1, "same": short - 1 - short // 2, "valid": 0}[mode]
    windows = shapes.sliding_windows(shapes.pad(x, [(before, after)]), short, 0)
    product = windows * y
    return reductions.sum(product, 1, dtype=product.dtype)


__all__ = [name for name in public(globals()) if not name.startswith("last_")]
