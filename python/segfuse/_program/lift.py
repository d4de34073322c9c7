"""Operands of one operation: their program, their common type and shape."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .. import _arrays, _native
from .._dtypes import is_float, promote, with_number
from .._errors import UsageError
from .._numbers import need_plain, real
from .fusion import Fusion
from .sizes import Size, native_size, native_sizes
from .value import Value

_traced = threading.local()


@contextlib.contextmanager
def traced(fusion: Fusion) -> Iterator[None]:
    """While a function is traced into that program, operations on arrays alone belong to it."""
    before = getattr(_traced, "fusion", None)
    _traced.fusion = fusion
    try:
        yield
    finally:
        _traced.fusion = before


def fusion_of(operation: str, operands: Sequence[Any]) -> Fusion:
    """The program of the values among the operands, or else the one that is traced."""
    found: Fusion | None = None
    for operand in operands:
        if not isinstance(operand, (Value, Size)):
            continue
        if found is None or found._is_around(operand._fusion):
            found = operand._fusion
        elif not operand._fusion._is_around(found):
            raise UsageError(
                f"{operation}: found values of two Fusions, {found.name!r} and "
                f"{operand._fusion.name!r}; a value means nothing outside the call that traces it"
            )
    if found is None and any(_arrays.kind_of(x) is not _arrays.STATIC for x in operands):
        found = getattr(_traced, "fusion", None)
    if found is None:
        kinds = ", ".join(_arrays.describe(operand) for operand in operands)
        raise UsageError(
            f"{operation}: found {kinds}, expected a value of a program: call it in a function "
            "given to segfuse.compile, or on values of a segfuse.Fusion"
        )
    return found


class Listed:
    """Floats in a list. They are as weak as each alone: float64 beside float64, else float32."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: np.ndarray) -> None:
        self.numbers = numbers


def value_of(fusion: Fusion, operation: str, operand: Any) -> Any:
    """A Value, a plain number, a Size or floats in a list; an array from outside becomes a
    Value."""
    if isinstance(operand, Value):
        return fusion._own(operand, operation)
    if isinstance(operand, Size):
        return operand
    if isinstance(operand, np.generic):
        return operand.item()  # weak, like a number of Python
    if isinstance(operand, (bool, int, float)):
        return operand
    if isinstance(operand, (list, tuple)):
        for part in operand:
            need_plain(f"{operation}: an element of a list", part)
        operand = np.asarray(operand)
        if operand.dtype == np.float64:
            return Listed(operand)
        raise_if_object(operation, operand)
        return fusion._capture(operand)
    if _arrays.kind_of(operand) is _arrays.STATIC:
        raise UsageError(
            f"{operation}: found {_arrays.describe(operand)}, expected a value, an array or a "
            "number"
        )
    sizes = _numbers_from_a_size(fusion, operand)
    return fusion._capture(operand) if sizes is None else sizes


def _numbers_from_a_size(fusion: Fusion, array: Any) -> Value | None:
    """A NumPy array that a size was added to or taken from, which is an array of objects."""
    if not isinstance(array, np.ndarray) or array.dtype != object:
        return None
    if array.size == 0:
        return fusion._capture(np.zeros(array.shape, np.int64))
    first = array.flat[0]
    if not all(isinstance(x, Size) for x in array.flat):
        return None
    more = [x - first for x in array.flat]
    if not all(isinstance(x, int) for x in more):
        return None
    numbers = fusion._capture(np.array(more, np.int64).reshape(array.shape))
    return make("add", [numbers, as_value(fusion, first, "int64")])


def raise_if_object(operation: str, array: Any) -> None:
    if array.dtype == object:
        raise UsageError(
            f"{operation}: found a list with values of a program in it; use sf.stack or "
            "sf.concatenate"
        )


def common_dtype(operands: Sequence[Any]) -> str:
    """The type that values and weak numbers make together."""
    dtype: str | None = None
    for operand in operands:
        if isinstance(operand, Value):
            dtype = operand.dtype if dtype is None else promote(dtype, operand.dtype)
    for operand in operands:
        if not isinstance(operand, Value):
            number = 1 if isinstance(operand, Size) else operand
            number = 1.0 if isinstance(operand, Listed) else number
            if dtype is None:
                kinds = {bool: "bool", int: "int64"}
                dtype = kinds.get(type(number), "float32")
            else:
                dtype = with_number(dtype, number)
    assert dtype is not None
    return dtype


def as_value(fusion: Fusion, operand: Any, dtype: str) -> Value:
    """The operand as a value of that type."""
    if isinstance(operand, Value):
        if operand.dtype == dtype:
            return operand
        if dtype == "float64" and operand._wide is not None:
            return operand._wide()
        cast = Value(fusion, _native.cast(operand._native, dtype))
        return _weak(cast, fusion, operand) if operand.dtype == "bool" else cast
    if isinstance(operand, Listed):
        numbers = operand.numbers
        found = fusion._capture(numbers if dtype == "float64" else numbers.astype(np.float32))
        return _weak(as_value(fusion, found, dtype), fusion, operand)
    if isinstance(operand, Size):
        return _as_scalar(fusion, operand, dtype)
    if dtype == "int64" and isinstance(operand, int) and abs(operand) > 1 << 53:
        return _large(fusion, operand)
    found = Value(fusion, fusion._native.constant(real("number", operand), dtype))
    return _weak(found, fusion, operand)


def _weak(found: Value, fusion: Fusion, operand: Any) -> Value:
    """Made of what has digits beyond float32, which count where it meets float64."""
    if found.dtype == "float32":
        found._wide = functools.cache(lambda: as_value(fusion, operand, "float64"))
    return found


def _as_scalar(fusion: Fusion, size: Size, dtype: str) -> Value:
    """A size as a number, which may be below 0 (`x.shape[0] - 9`), as no size of a program is."""
    if fusion._known("<", size, 0, False):
        return make("neg", [Value(fusion, fusion._native.size(native_size(-size), dtype))])
    return Value(fusion, fusion._native.size(native_size(size), dtype))


def _large(fusion: Fusion, number: int) -> Value:
    """An int64 that no float64 holds, in two parts."""
    if not -(1 << 63) <= number < 1 << 63:
        raise UsageError(f"found {number}, expected a number that int64 holds")
    high, low, scale = (
        Value(fusion, fusion._native.constant(float(part), "int64"))
        for part in (number >> 32, number & 0xFFFFFFFF, 1 << 32)
    )
    return make("add", [make("mul", [high, scale]), low])


def lifted(operation: str, operands: Sequence[Any], *, floating: bool = False) -> list[Value]:
    """All operands as values of one program and one type; of a float type if `floating`."""
    fusion = fusion_of(operation, operands)
    values = [value_of(fusion, operation, operand) for operand in operands]
    dtype = common_dtype(values)
    if floating and not is_float(dtype):
        dtype = "float32"
    return [as_value(fusion, value, dtype) for value in values]


def value(operation: str, operand: Any, *beside: Any) -> Value:
    """One operand as a value."""
    fusion = fusion_of(operation, [operand, *beside])
    found = value_of(fusion, operation, operand)
    dtype = common_dtype([found])
    if isinstance(found, Listed) and "float64" in [getattr(x, "dtype", None) for x in beside]:
        dtype = "float64"
    return as_value(fusion, found, dtype)


def floating(operation: str, operand: Any) -> Value:
    """One operand as a value of a float type."""
    return lifted(operation, [operand], floating=True)[0]


def agree_on_shape(operation: str, values: Sequence[Value]) -> list[Value]:
    """Settles which sizes are 1 and which are equal, as far as the call that is traced tells.
    Returns the values with every axis that is stretched as one of the constant size 1."""
    fusion = values[0]._fusion
    settled = list(values)
    shapes = [v.shape for v in values]
    rank = max(len(shape) for shape in shapes)
    for axis in range(1, rank + 1):
        sizes = [shape[-axis] for shape in shapes if len(shape) >= axis]
        first = next((size for size in sizes if not is_one(size)), 1)
        # A formula that is equal to a number in each call of this trace becomes that number.
        number = next((n for n in sizes if isinstance(n, int) and (n == 1) == is_one(first)), None)
        for i, shape in enumerate(shapes):
            if len(shape) < axis:
                continue
            size = shape[-axis]
            if is_one(size):
                if not is_one(first) or number is not None:
                    settled[i] = with_constant(settled[i], settled[i].ndim - axis, 1)
            elif not same_size(fusion, first, size):
                texts = ", ".join(shape_text(fusion, shape) for shape in shapes)
                raise UsageError(f"{operation}: the shapes {texts} do not broadcast")
            elif number is not None and fusion._number(size) == number:
                settled[i] = with_constant(settled[i], settled[i].ndim - axis, number)
    return settled


def make(operation: str, operands: Sequence[Value], *attributes: Any) -> Value:
    """The first result of an operation."""
    fusion = operands[0]._fusion
    natives = [operand._native for operand in operands]
    found = Value(fusion, fusion._native.apply(operation, natives, list(attributes))[0])
    return kept_weak(found, operands, lambda wide: make(operation, wide, *attributes))


def kept_weak(
    found: Value, operands: Sequence[Value], again: Callable[[list[Value]], Value]
) -> Value:
    """A float32 result whose float operands are all weak is weak, too."""
    floats = [x for x in operands if is_float(x.dtype)]
    if floats and found.dtype == "float32" and all(x._wide for x in floats):
        wide = [x._wide or (lambda x=x: x) for x in operands]
        found._wide = functools.cache(lambda: again([x() for x in wide]))
    return found


def new_axis(x: Value, at: int) -> Value:
    """The value with an axis of size 1 at that place."""
    sizes = native_sizes((*x.shape[:at], 1, *x.shape[at:]))
    return make("broadcast", [x], [i for i in range(x.ndim + 1) if i != at], sizes)


def part(x: Value, axis: int, start: Any, size: Any) -> Value:
    """The elements from `start` on along one axis."""
    starts: list[Any] = [0] * x.ndim
    sizes = list(x.shape)
    starts[axis], sizes[axis] = start, size
    return make("slice", [x], native_sizes(starts), native_sizes(sizes))


def with_constant(x: Value, axis: int, size: int) -> Value:
    """The value, whose size there is that number in each call of this trace, without a formula."""
    return part(x, axis, 0, size) if isinstance(x.shape[axis], Size) else x


def is_one(size: Any) -> bool:
    return size._fusion._known("==", size, 1, False) if isinstance(size, Size) else size == 1


def same_size(fusion: Fusion, a: Any, b: Any) -> bool:
    """Whether sizes are equal in the call that is traced; the program checks it in every other."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    x, y = fusion._number(a), fusion._number(b)
    if x is None or y is None:
        return True
    if x == y:
        try:
            fusion._native.require(native_size(a), native_size(b))
        except UsageError:  # equal by chance, as 4 * N and 5 * N are for N = 0
            return int(a) == int(b)
    return x == y


def shape_text(fusion: Fusion, shape: Sequence[Any]) -> str:
    numbers = [fusion._number(size) for size in shape]
    texts = [repr(s) if n is None else str(n) for s, n in zip(shape, numbers, strict=True)]
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"
