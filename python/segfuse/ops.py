"""Operations on values: `import segfuse.ops as sf`.

They are NumPy's where NumPy has them: names, arguments, broadcasting. They take the values that a
function given to `segfuse.compile` gets, or those of a `segfuse.Fusion`, and beside them plain
numbers and arrays. Element types meet as in JAX: plain numbers and NumPy scalars are weak, integers
never widen floats, `/` and functions such as `exp` of integers are float32.

Every elementwise operation of docs/ir.md is here under its name there (`exp`, `sigmoid`, `lt`,
...), and under NumPy's where that is another (`less`).
"""

from __future__ import annotations

import builtins
import inspect
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _native
from ._dtypes import DTypeLike, dtype_name, is_float
from ._errors import UsageError
from ._numbers import real, whole
from ._program.index import index
from ._program.lift import (
    agree_on_shape,
    as_value,
    common_dtype,
    floating,
    fusion_of,
    is_one,
    lifted,
    make,
    new_axis,
    same_size,
    shape_text,
    value,
    value_of,
    with_constant_one,
)
from ._program.sizes import Size, native_size, native_sizes
from ._program.value import Value, functions

if TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[..., Value]: ...


Axis = Any
"""An int, a tuple of ints, or None for all axes; negative ones count from the end."""

_TABLE = {row[0]: row for row in _native.operations()}


def _elementwise(operation: str) -> Callable[..., Value]:
    """The function of a row of the table."""
    types, count = _TABLE[operation][2], _TABLE[operation][5]
    needs_float = types == "float"

    def function(*operands: Any) -> Value:
        if len(operands) != count:
            raise UsageError(f"{operation}: {len(operands)} operands were given, expected {count}")
        values = lifted(operation, operands, floating=needs_float)
        if count > 1:
            values = agree_on_shape(operation, values)
        return make(operation, values)

    words = {
        "float": "floats (integers become float32)",
        "numeric": "floats and integers",
        "compare": "any; the result is bool",
        "test": "floats; the result is bool",
        "logical": "bool",
    }
    function.__name__ = function.__qualname__ = operation
    function.__doc__ = (
        f"`{operation}` of docs/ir.md for each element of {count} "
        f"operand{'s' if count > 1 else ''}, which broadcast. Types: {words[types]}."
    )
    return function


ELEMENTWISE = tuple(name for name, row in _TABLE.items() if row[1] == "elementwise" and row[2])
"""The names of the elementwise operations, from the table."""

_elementwise_functions = {name: _elementwise(name) for name in ELEMENTWISE}
globals().update(_elementwise_functions)

_NUMPY_NAMES = {
    "negative": "neg",
    "absolute": "abs",
    "fabs": "abs",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "true_divide": "div",
    "equal": "eq",
    "not_equal": "ne",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "isnan": "is_nan",
    "isfinite": "is_finite",
    "rint": "round",
    "invert": "logical_not",
    "bitwise_not": "logical_not",
    "bitwise_and": "logical_and",
    "bitwise_or": "logical_or",
    "bitwise_xor": "logical_xor",
}
globals().update({name: _elementwise_functions[known] for name, known in _NUMPY_NAMES.items()})

_MORE_NUMPY_NAMES = {
    "amax": "max",
    "amin": "min",
    "permute_dims": "transpose",
    "concat": "concatenate",
    "pow": "power",
    "float_power": "power",
    "mod": "remainder",
    "dot": "matmul",
    "around": "round",
    "floordiv": "floor_divide",
}


def _numpy_function(name: str) -> Callable[..., Any] | None:
    """What stands for NumPy's function of that name."""
    name = _MORE_NUMPY_NAMES.get(name, name)
    found = globals().get(name) if name in __all__ else None
    return found if callable(found) else None


def _binary(operation: str, a: Any, b: Any) -> Any:
    """An operator; NotImplemented for what has no meaning beside a value."""
    if any_of(isinstance(x, (str, bytes, dict, set, type(None))) for x in (a, b)):
        if operation in ("eq", "ne"):
            return operation == "ne"
        return NotImplemented
    return globals()[operation](a, b)


any_of = builtins.any


# --- elementwise, composed ---


def where(condition: Any, a: Any, b: Any) -> Value:
    """a where the condition holds, b elsewhere."""
    fusion = fusion_of("where", [condition, a, b])
    mask = value_of(fusion, "where", condition)
    mask = as_value(fusion, mask, common_dtype([mask]))
    if mask.dtype != "bool":
        mask = make("ne", [mask, as_value(fusion, 0, mask.dtype)])
    branches = [value_of(fusion, "where", x) for x in (a, b)]
    dtype = common_dtype(branches)
    values = [mask, *(as_value(fusion, x, dtype) for x in branches)]
    return make("where", agree_on_shape("where", values))


def astype(x: Any, dtype: DTypeLike) -> Value:
    """The elements as another type; floats become integers toward zero."""
    x = value("astype", x)
    return as_value(x._fusion, x, dtype_name(dtype))


def power(a: Any, b: Any) -> Value:
    """a ** b; whole numbers up to 8 and 0.5 become products and roots."""
    if isinstance(b, (int, float, np.integer, np.floating)) and not isinstance(b, bool):
        x = value("power", a)
        if b == 0.5:
            return _elementwise_functions["sqrt"](x)
        if float(b).is_integer() and -8 <= b <= 8:
            return _whole_power(x, int(b))
    return _elementwise_functions["pow"](a, b)


def _whole_power(x: Value, exponent: int) -> Value:
    if exponent < 0:
        return _elementwise_functions["reciprocal"](_whole_power(x, -exponent))
    if exponent == 0:
        return ones_like(x)
    if exponent == 1:
        return x
    half = _elementwise_functions["square"](_whole_power(x, exponent // 2))
    return half * x if exponent % 2 else half


def _rest(operation: str, x: Value, y: Value) -> tuple[Value, Value]:
    """What fmod leaves, with the sign of x, and where the sign of y is the other one."""
    if not is_float(x.dtype):
        raise UsageError(f"{operation}: found {x.dtype}, expected floats; cast with x.astype(...)")
    rest = _elementwise_functions["fmod"](x, y)
    return rest, (rest != 0) & ((rest < 0) != (y < 0))


def floor_divide(a: Any, b: Any) -> Value:
    """The floor of the exact quotient of floats, as NumPy has it."""
    x, y = lifted("floor_divide", [a, b])
    dtype = x.dtype
    x, y = _raised(x), _raised(y)
    rest, other = _rest("floor_divide", x, y)
    floor = _elementwise_functions["floor"]
    times = (x - rest) / y
    times = where(other, times - 1.0, times)  # whole, but for what the quotient rounds
    whole = floor(times)
    whole = where(times - whole > 0.5, whole + 1.0, whole)
    # Infinite or not a number, or a zero with its sign.
    return astype(where((y == 0) | (times == 0), floor(x / y), whole), dtype)


def remainder(a: Any, b: Any) -> Value:
    """The exact rest of a / b of floats, with the sign of b."""
    x, y = lifted("remainder", [a, b])
    rest, other = _rest("remainder", x, y)
    zero = where(y < 0, -(0.0 - rest), rest + 0.0)  # it has the sign of b, too
    return where(other, rest + y, where(rest == 0, zero, rest))


def clip(x: Any, min: Any = None, max: Any = None) -> Value:
    """Elements within [min, max]; NaN stays."""
    x = value("clip", x)
    if min is not None:
        x = _elementwise_functions["maximum"](x, min)
    return x if max is None else _elementwise_functions["minimum"](x, max)


def log2(x: Any) -> Value:
    """Logarithm to base 2."""
    return _elementwise_functions["log"](x) * (1 / math.log(2))


def log10(x: Any) -> Value:
    """Logarithm to base 10."""
    return _elementwise_functions["log"](x) * (1 / math.log(10))


def tan(x: Any) -> Value:
    """Tangent."""
    return _elementwise_functions["sin"](x) / _elementwise_functions["cos"](x)


def isinf(x: Any) -> Value:
    """Whether an element is infinite."""
    return _elementwise_functions["abs"](floating("isinf", x)) == math.inf


# --- reductions ---


def _axes(operation: str, x: Value, axis: Axis) -> list[int] | None:
    if axis is None:
        return None
    return [_axis(operation, x, a) for a in (axis if isinstance(axis, (tuple, list)) else [axis])]


def _axis(operation: str, x: Value, axis: int, more: int = 0) -> int:
    rank = x.ndim + more
    axis = whole(f"{operation}: axis", axis)
    if not -rank <= axis < rank:
        raise UsageError(f"{operation}: axis {axis} does not exist; {x!r} has {x.ndim} axes")
    return axis % rank


def _reduce(operation: str, x: Any, axis: Axis, keepdims: bool) -> Value:
    x = value(operation, x)
    if x.dtype == "bool" and operation in ("sum", "prod"):
        x = astype(x, "int64")
    return Value(
        x._fusion, _native.reduce(operation, x._native, _axes(operation, x, axis), bool(keepdims))
    )


def sum(x: Any, axis: Axis = None, keepdims: bool = False) -> Value:
    """The sum over `axis`; that of bool counts, in int64."""
    return _reduce("sum", x, axis, keepdims)


def prod(x: Any, axis: Axis = None, keepdims: bool = False) -> Value:
    """The product over `axis`."""
    return _reduce("prod", x, axis, keepdims)


def max(x: Any, axis: Axis = None, keepdims: bool = False) -> Value:
    """The greatest element over `axis`; NaN if there is one."""
    return _reduce("max", x, axis, keepdims)


def min(x: Any, axis: Axis = None, keepdims: bool = False) -> Value:
    """The least element over `axis`; NaN if there is one."""
    return _reduce("min", x, axis, keepdims)


def logsumexp(x: Any, axis: Axis = None, keepdims: bool = False) -> Value:
    """log(sum(exp(x))) over `axis`, without overflow."""
    return _reduce("logsumexp", floating("logsumexp", x), axis, keepdims)


def mean(x: Any, axis: Axis = None, keepdims: bool = False) -> Value:
    """The mean over `axis`."""
    x = floating("mean", x)
    return Value(x._fusion, _native.mean(x._native, _axes("mean", x, axis), bool(keepdims)))


def var(x: Any, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> Value:
    """The variance over `axis`: squared deviations from the mean over (count - ddof)."""
    x = floating("var", x)
    return Value(
        x._fusion,
        _native.var(x._native, _axes("var", x, axis), bool(keepdims), whole("var: ddof", ddof)),
    )


def std(x: Any, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> Value:
    """The standard deviation over `axis`."""
    return _elementwise_functions["sqrt"](var(x, axis, keepdims, ddof))


def any(x: Any, axis: Axis = None, keepdims: bool = False) -> Value:
    """Whether one element over `axis` is true."""
    return max(astype(value("any", x) != 0, "int32"), axis, keepdims) > 0


def all(x: Any, axis: Axis = None, keepdims: bool = False) -> Value:
    """Whether all elements over `axis` are true."""
    return min(astype(value("all", x) != 0, "int32"), axis, keepdims) > 0


def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Value:
    """The index (int64) of the first greatest element along `axis`; of all elements without one."""
    x = value("argmax", x)
    if axis is None:
        rank = x.ndim
        flat = argmax(reshape(x, -1), 0)
        return reshape(flat, (1,) * rank) if keepdims else flat
    axis = _axis("argmax", x, axis)
    result = make("argmax", [x], [axis])
    return expand_dims(result, axis) if keepdims else result


def argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Value:
    """The index (int64) of the first least element along `axis`; of all elements without one."""
    return argmax(-value("argmin", x), axis, keepdims)


# --- shapes ---


def reshape(x: Any, shape: Any) -> Value:
    """The same elements in row-major order in another shape; one size may be -1."""
    x = value("reshape", x)
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
    return Value(fusion, _native.reshape(x._native, native_sizes(sizes)))


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
            f"are no multiple of the sizes beside -1 in {shape}"
        )
    return rest // number


def ravel(x: Any) -> Value:
    """One axis."""
    return reshape(x, -1)


def transpose(x: Any, axes: Sequence[int] | None = None) -> Value:
    """Result axis i is axis axes[i]; all axes in reverse without `axes`."""
    x = value("transpose", x)
    order = list(range(x.ndim))[::-1] if axes is None else [_axis("transpose", x, a) for a in axes]
    return make("permute", [x], order)


def swapaxes(x: Any, axis1: int, axis2: int) -> Value:
    """Two axes exchanged."""
    x = value("swapaxes", x)
    order = list(range(x.ndim))
    a, b = _axis("swapaxes", x, axis1), _axis("swapaxes", x, axis2)
    order[a], order[b] = order[b], order[a]
    return make("permute", [x], order)


def moveaxis(x: Any, source: int, destination: int) -> Value:
    """One axis at another place."""
    x = value("moveaxis", x)
    order = list(range(x.ndim))
    order.insert(_axis("moveaxis", x, destination), order.pop(_axis("moveaxis", x, source)))
    return make("permute", [x], order)


def expand_dims(x: Any, axis: int) -> Value:
    """A new axis of size 1 at `axis` of the result."""
    x = value("expand_dims", x)
    return new_axis(x, _axis("expand_dims", x, axis, 1))


def squeeze(x: Any, axis: Axis = None) -> Value:
    """Without `axis`, or without all axes of size 1."""
    x = value("squeeze", x)
    axes = (
        [i for i, s in enumerate(x.shape) if is_one(s)]
        if axis is None
        else _axes("squeeze", x, axis)
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
            x = with_constant_one(x, x.ndim - axis)
    return Value(x._fusion, _native.broadcast_to(x._native, native_sizes(sizes)))


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
    axis = _axis("concatenate", values[0], axis)
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
    at = _axis("stack", values[0], axis, 1)
    return concatenate([expand_dims(v, at) for v in values], at)


def split(x: Any, sections: int | Sequence[int], axis: int = 0) -> list[Value]:
    """Equal parts, or the parts between indices."""
    x = value("split", x)
    axis = _axis("split", x, axis)
    size = x.shape[axis]
    if isinstance(sections, int):
        if size % sections != 0:
            raise UsageError(f"split: the size {size} of axis {axis} is no multiple of {sections}")
        bounds = [size // sections * i for i in range(sections)] + [size]
    else:
        bounds = [0, *sections, size]
    before = (slice(None),) * axis
    return [x[(*before, slice(a, b))] for a, b in zip(bounds[:-1], bounds[1:], strict=True)]


def flip(x: Any, axis: Axis = None) -> Value:
    """Elements in reverse along `axis`."""
    x = value("flip", x)
    axes = range(x.ndim) if axis is None else _axes("flip", x, axis) or ()
    for a in axes:
        x = x[(*(slice(None),) * a, slice(None, None, -1))]
    return x


def pad(x: Any, pad_width: Any, mode: str = "constant", constant_values: float = 0) -> Value:
    """`constant_values` around: pad_width is n, (before, after), or one such pair for each axis."""
    x = value("pad", x)
    if mode != "constant":
        raise UsageError(f"pad: found the mode {mode!r}, expected 'constant'")
    if isinstance(pad_width, (int, Size)):
        pad_width = (pad_width, pad_width)
    if isinstance(pad_width[0], (int, Size)):
        pad_width = [pad_width] * x.ndim
    pairs = list(pad_width)
    if len(pairs) == 1:
        pairs = pairs * x.ndim
    if len(pairs) != x.ndim or any_of(len(pair) != 2 for pair in pairs):
        raise UsageError(f"pad: found {pad_width}, expected (before, after) for each axis of {x!r}")
    low, high = native_sizes([p[0] for p in pairs]), native_sizes([p[1] for p in pairs])
    return make("pad", [x], low, high, float(constant_values))


def take(x: Any, indices: Any, axis: int | None = None) -> Value:
    """`axis` of x is replaced by the axes of the indices, which count from 0 and are in range."""
    fusion = fusion_of("take", [x, indices])
    x = value("take", x, indices)
    if axis is None:
        x, axis = reshape(x, -1), 0
    at = value_of(fusion, "take", indices)
    return make("take", [x, as_value(fusion, at, common_dtype([at]))], _axis("take", x, axis))


def take_along_axis(x: Any, indices: Any, axis: int) -> Value:
    """Along `axis` the element that each index names; the shape is that of the indices."""
    x, at = value("take_along_axis", x, indices), value("take_along_axis", indices, x)
    return make("gather", [x, at], _axis("take_along_axis", x, axis))


def scatter_add(updates: Any, indices: Any, axis: int, size: Any) -> Value:
    """Adds updates into zeros of `size` along `axis`: the adjoint of take()."""
    updates, at = value("scatter_add", updates, indices), value("scatter_add", indices, updates)
    axis = _axis("scatter_add", updates, axis, 1 - at.ndim)
    return make("scatter_add", [updates, at], axis, native_sizes(size))


def sliding_windows(x: Any, size: int, axis: int = -1, stride: int = 1, dilation: int = 1) -> Value:
    """`axis` becomes (windows, size): element j of window i is i * stride + j * dilation."""
    x = value("sliding_windows", x)
    return make("unfold", [x], _axis("sliding_windows", x, axis), size, stride, dilation)


def one_hot(indices: Any, classes: Any, dtype: DTypeLike = "float32") -> Value:
    """1 where the new last axis is the index, 0 elsewhere."""
    at = value("one_hot", indices)
    return astype(expand_dims(at, -1) == arange(classes, dtype=at.dtype, like=at), dtype)


# --- new values ---


def _owner(operation: str, sizes: Sequence[Any], like: Any) -> Any:
    owners = [x for x in [*sizes, like] if isinstance(x, (Size, Value))]
    return fusion_of(operation, owners) if owners else None


def arange(stop: Any, dtype: DTypeLike = "int64", like: Value | None = None) -> Any:
    """0, 1, 2, ... up to `stop`, of NumPy unless that is a size of a value or `like` is given."""
    fusion = _owner("arange", [stop], like)
    if fusion is None:
        return np.arange(stop, dtype=dtype_name(dtype))
    return Value(fusion, fusion._native.iota(native_size(stop), dtype_name(dtype)))


def full(shape: Any, number: float, dtype: DTypeLike = "float32", like: Value | None = None) -> Any:
    """An array of one number, of NumPy unless a size is one of a value or `like` is given."""
    sizes = [shape] if isinstance(shape, (int, Size)) else list(shape)
    fusion = _owner("full", sizes, like)
    if fusion is None:
        return np.full(sizes, number, dtype_name(dtype))
    return Value(
        fusion,
        fusion._native.full(real("full: number", number), native_sizes(sizes), dtype_name(dtype)),
    )


def zeros(shape: Any, dtype: DTypeLike = "float32", like: Value | None = None) -> Any:
    """As `full` with 0."""
    return full(shape, 0, dtype, like)


def ones(shape: Any, dtype: DTypeLike = "float32", like: Value | None = None) -> Any:
    """As `full` with 1."""
    return full(shape, 1, dtype, like)


def full_like(x: Any, number: float, dtype: DTypeLike | None = None) -> Value:
    """One number in the shape and type of x."""
    x = value("full_like", x)
    kind = x.dtype if dtype is None else dtype_name(dtype)
    return Value(
        x._fusion,
        x._fusion._native.full(real("full_like: number", number), x._native.shape(), kind),
    )


def zeros_like(x: Any, dtype: DTypeLike | None = None) -> Value:
    """0 in the shape and type of x."""
    return full_like(x, 0, dtype)


def ones_like(x: Any, dtype: DTypeLike | None = None) -> Value:
    """1 in the shape and type of x."""
    return full_like(x, 1, dtype)


def random_uniform(seed: Any, shape: Any) -> Value:
    """Uniform float32 in [0, 1) from an int64 seed of shape (2,); each call draws anew."""
    seed = value("random_uniform", seed)
    return Value(seed._fusion, _native.random_uniform(seed._native, native_sizes(shape)))


def dropout(x: Any, seed: Any, rate: float) -> Value:
    """Keeps each element with probability 1 - rate and divides it by that."""
    x, seed = value("dropout", x, seed), value("dropout", seed, x)
    return Value(x._fusion, _native.dropout(x._native, seed._native, real("dropout: rate", rate)))


# --- products ---


def matmul(a: Any, b: Any) -> Value:
    """a @ b as in NumPy: (..., M, K) x (..., K, N), with one axis for a vector."""
    x, y = lifted("matmul", [a, b])
    if x.ndim == 0 or y.ndim == 0:
        raise UsageError(f"matmul: found {x!r} and {y!r}, expected at least one axis each")
    row, column = x.ndim == 1, y.ndim == 1
    if row:
        x = expand_dims(x, 0)
    if column:
        y = expand_dims(y, 1)
    if not same_size(x._fusion, x.shape[-1], y.shape[-2]):
        shapes = [shape_text(x._fusion, v.shape) for v in (x, y)]
        raise UsageError(f"matmul: the inner sizes of {shapes[0]} and {shapes[1]} differ")
    x, y = _with_equal_batches(x, y)
    result = make("matmul", [x, y], 0, 0)
    gone = [-1] * column + [-2] * row
    return squeeze(result, gone) if gone else result


def _with_equal_batches(x: Value, y: Value) -> tuple[Value, Value]:
    if y.ndim == 2:
        return x, y
    lead_x, lead_y = x.shape[:-2], y.shape[:-2]
    rank = builtins.max(len(lead_x), len(lead_y))
    lead = [1] * rank
    for shape in (lead_x, lead_y):
        for i, size in enumerate(shape, rank - len(shape)):
            if not is_one(size):
                lead[i] = size
    if tuple(lead) != lead_x:
        x = broadcast_to(x, (*lead, *x.shape[-2:]))
    if tuple(lead) != lead_y:
        y = broadcast_to(y, (*lead, *y.shape[-2:]))
    return x, y


def semicrf_loss(*operands: Value) -> Value:
    """Semi-Markov CRF negative log-likelihood of each sequence; operands as docs/ir.md has them."""
    return make("semicrf_loss", [value("semicrf_loss", x) for x in operands])


# --- compositions ---


def softmax(x: Any, axis: int = -1) -> Value:
    """exp(x) over its sum along `axis`, without overflow."""
    x = floating("softmax", x)
    return Value(x._fusion, _native.softmax(x._native, _axis("softmax", x, axis)))


def log_softmax(x: Any, axis: int = -1) -> Value:
    """x minus its logsumexp along `axis`."""
    x = floating("log_softmax", x)
    return Value(x._fusion, _native.log_softmax(x._native, _axis("log_softmax", x, axis)))


def gelu(x: Any, approximate: bool = False) -> Value:
    """x * (1 + erf(x / sqrt 2)) / 2, or its approximation by tanh."""
    x = floating("gelu", x)
    return Value(x._fusion, (_native.gelu_tanh if approximate else _native.gelu)(x._native))


def silu(x: Any) -> Value:
    """x * sigmoid(x)."""
    x = floating("silu", x)
    return Value(x._fusion, _native.silu(x._native))


def _raised(x: Value) -> Value:
    """Norms and quotients of 16-bit values are computed in float32 and rounded once."""
    return astype(x, "float32") if x.dtype in ("float16", "bfloat16") else x


def _parameter(operation: str, x: Value, parameter: Any) -> Any:
    """An array as a value; numbers stay weak."""
    number = parameter is None or isinstance(parameter, (bool, int, float))
    return parameter if number else value(operation, parameter, x)


def _affine(operation: str, x: Value, result: Value, scale: Any, shift: Any) -> Value:
    """result * scale + shift, in the type that x and what is given make together."""
    scale = _parameter(operation, x, scale)
    shift = _parameter(operation, x, shift)
    dtype = common_dtype([x, *(p for p in (scale, shift) if p is not None)])
    if scale is not None:
        result = result * (_raised(scale) if isinstance(scale, Value) else scale)
    if shift is not None:
        result = result + (_raised(shift) if isinstance(shift, Value) else shift)
    return result if result.dtype == dtype else astype(result, dtype)


def layer_norm(x: Any, scale: Any = None, shift: Any = None, epsilon: float = 1e-5) -> Value:
    """(x - mean) / sqrt(variance + epsilon) over the last axis, times scale (C), plus shift (C)."""
    x = floating("layer_norm", x)
    result = Value(
        x._fusion, _native.layer_norm(_raised(x)._native, real("layer_norm: epsilon", epsilon))
    )
    return _affine("layer_norm", x, result, scale, shift)


def rms_norm(x: Any, scale: Any = None, epsilon: float = 1e-6) -> Value:
    """x / sqrt(mean(x^2) + epsilon) over the last axis, times scale (C)."""
    x = floating("rms_norm", x)
    result = Value(
        x._fusion, _native.rms_norm(_raised(x)._native, real("rms_norm: epsilon", epsilon))
    )
    return _affine("rms_norm", x, result, scale, None)


def _channels(x: Value, parameter: Any) -> Any:
    """(C) as it meets the second axis of (B, C, ...)."""
    if parameter is None or isinstance(parameter, (int, float)):
        return parameter
    parameter = value("per channel", parameter, x)
    return reshape(parameter, (parameter.shape[0], *(1,) * (x.ndim - 2)))


def instance_norm(x: Any, scale: Any = None, shift: Any = None, epsilon: float = 1e-5) -> Value:
    """x (B, C, ...): standardised over the axes after the second; scale and shift are (C)."""
    x = floating("instance_norm", x)
    result = Value(
        x._fusion,
        _native.instance_norm(_raised(x)._native, real("instance_norm: epsilon", epsilon)),
    )
    return _affine("instance_norm", x, result, _channels(x, scale), _channels(x, shift))


def batch_norm(
    x: Any, scale: Any = 1.0, shift: Any = 0.0, epsilon: float = 1e-5
) -> tuple[Value, Value, Value]:
    """x (B, C, ...) standardised over all axes but the second; and mean and variance (C)."""
    x = floating("batch_norm", x)
    if x.ndim < 2:
        raise UsageError(f"batch_norm: found {x!r}, expected a value of shape (B, C, ...)")
    ones_ = Value(x._fusion, x._fusion._native.full(1, [x._native.shape()[1]], x.dtype))
    zeros_ = zeros_like(ones_)
    scale, shift = ones_ * scale, zeros_ + shift
    epsilon = real("batch_norm: epsilon", epsilon)
    results = _native.batch_norm(x._native, scale._native, shift._native, epsilon)
    y, mean_, variance = (Value(x._fusion, v) for v in results)
    return y, mean_, variance


def batch_norm_inference(
    x: Any, mean: Any, variance: Any, scale: Any = None, shift: Any = None, epsilon: float = 1e-5
) -> Value:
    """x (B, C, ...) standardised by statistics (C) that are given."""
    x = floating("batch_norm_inference", x)
    operation = "batch_norm_inference"
    variance = _raised(value(operation, variance, x))
    inverse = _elementwise_functions["rsqrt"](variance + epsilon)
    mean = _parameter(operation, x, _channels(x, mean))
    centred = _raised(x) - (_raised(mean) if isinstance(mean, Value) else mean)
    return _affine(
        operation, x, centred * _channels(x, inverse), _channels(x, scale), _channels(x, shift)
    )


__all__ = [
    name
    for name, found in sorted(globals().items())
    if inspect.isfunction(found) and found.__module__ == __name__ and not name.startswith("_")
]
functions.update({name: globals()[name] for name in __all__})
functions.update(binary=_binary, index=index, numpy_function=_numpy_function)
