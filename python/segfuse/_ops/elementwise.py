"""Elementwise operations: those of the table, and what is made of a few of them."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _native
from .._dtypes import DTypeLike, dtype_for, is_float
from .._errors import UsageError
from .._program.lift import (
    agree_on_shape,
    as_value,
    common_dtype,
    floating,
    fusion_of,
    lifted,
    make,
    value,
    value_of,
)
from .._program.value import Value
from . import creation, public

if TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[..., Value]: ...


_TABLE = {row[0]: row for row in _native.operations()}


def _elementwise(operation: str) -> Callable[..., Value]:
    """The function of a row of the table."""
    types, count = _TABLE[operation][2], _TABLE[operation][5]
    needs_float = types in ("float", "test")

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
        "test": "floats (integers become float32); the result is bool",
        "logical": "bool",
        "integer": "integers",
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
    found = as_value(x._fusion, x, dtype_for(x.dtype, dtype))
    return found if found._wide is None else Value(x._fusion, found._native)


def power(a: Any, b: Any) -> Value:
    """a ** b; whole numbers up to 8 and 0.5 become products and roots."""
    if isinstance(b, (int, float, np.integer, np.floating)) and not isinstance(b, bool):
        x = lifted("power", [a, b] if isinstance(b, (float, np.floating)) else [a])[0]
        if x.dtype == "bool":
            x = astype(x, "int64")
        if b == 0.5:
            return _elementwise_functions["sqrt"](x)
        if float(b).is_integer() and -8 <= b <= 8:
            return _whole_power(x, int(b))
    x, y = lifted("power", [a, b])
    return _elementwise_functions["pow"](x, y) if is_float(x.dtype) else _integer_power(x, y)


def _integer_power(x: Value, exponent: Value) -> Value:
    """Integers by squaring, which wrap; 0 for exponents below 0, except for the bases 1 and -1."""
    if x.dtype == "bool":
        x, exponent = astype(x, "int64"), astype(exponent, "int64")
    bit_and, shifted = _elementwise_functions["bit_and"], _elementwise_functions["shift_right"]
    result, square = creation.ones_like(x), x
    for bit in range(63 if x.dtype == "int64" else 31):
        result = where(bit_and(shifted(exponent, bit), 1) != 0, result * square, result)
        square = square * square
    odd = bit_and(exponent, 1) != 0
    below = where((x == 1) | ((x == -1) & ~odd), 1, where(x == -1, -1, 0))
    return where(exponent < 0, astype(below, x.dtype), result)


def _whole_power(x: Value, exponent: int) -> Value:
    if exponent < 0:
        return _elementwise_functions["reciprocal"](_whole_power(x, -exponent))
    if exponent == 0:
        return creation.ones_like(x)
    if exponent == 1:
        return x
    half = _elementwise_functions["square"](_whole_power(x, exponent // 2))
    return half * x if exponent % 2 else half


def _counted(operation: str, a: Any, b: Any) -> tuple[Value, Value]:
    """Numbers of one type; bool counts as int64."""
    x, y = lifted(operation, [a, b])
    if x.dtype == "bool":
        x, y = as_value(x._fusion, x, "int64"), as_value(y._fusion, y, "int64")
    return x, y


def _rest(x: Value, y: Value) -> tuple[Value, Value]:
    """What fmod leaves, with the sign of x, and where the sign of y is the other one."""
    rest = _elementwise_functions["fmod"](x, y)
    return rest, (rest != 0) & ((rest < 0) != (y < 0))


def floor_divide(a: Any, b: Any) -> Value:
    """The floor of the exact quotient, as NumPy has it; of integers 0 where b is."""
    x, y = _counted("floor_divide", a, b)
    if not is_float(x.dtype):
        return _elementwise_functions["floor_div"](x, y)
    dtype = x.dtype
    x, y = raised(x), raised(y)
    rest, other = _rest(x, y)
    floor = _elementwise_functions["floor"]
    times = (x - rest) / y
    times = where(other, times - 1.0, times)  # whole, except for the rounding of the quotient
    whole = floor(times)
    whole = where(times - whole > 0.5, whole + 1.0, whole)
    # Infinite or not a number, or a zero with its sign.
    return astype(where((y == 0) | (times == 0), floor(x / y), whole), dtype)


def remainder(a: Any, b: Any) -> Value:
    """The exact rest of a / b, with the sign of b; of integers 0 where b is."""
    x, y = _counted("remainder", a, b)
    if not is_float(x.dtype):
        return _elementwise_functions["floor_mod"](x, y)
    rest, other = _rest(x, y)
    zero = where(y < 0, -(0.0 - rest), rest + 0.0)  # it has the sign of b, too
    return where(other, rest + y, where(rest == 0, zero, rest))


def fmod(a: Any, b: Any) -> Value:
    """The exact rest of a / b, with the sign of a; of integers 0 where b is."""
    x, y = _counted("fmod", a, b)
    if is_float(x.dtype):
        return _elementwise_functions["fmod"](x, y)
    rest = _elementwise_functions["floor_mod"](x, y)
    return where((rest != 0) & ((x < 0) != (y < 0)), rest - y, rest)


def _true(operation: str, operands: Any) -> list[Value]:
    """The operands as bool: whether they are not zero."""
    values = lifted(operation, operands)
    return [v if v.dtype == "bool" else v != 0 for v in values]


def logical_and(a: Any, b: Any) -> Value:
    """Whether both are true; numbers are unless they are 0."""
    return _elementwise_functions["logical_and"](*_true("logical_and", [a, b]))


def logical_or(a: Any, b: Any) -> Value:
    """Whether one is true; numbers are unless they are 0."""
    return _elementwise_functions["logical_or"](*_true("logical_or", [a, b]))


def logical_xor(a: Any, b: Any) -> Value:
    """Whether exactly one is true; numbers are unless they are 0."""
    return _elementwise_functions["logical_xor"](*_true("logical_xor", [a, b]))


def logical_not(x: Any) -> Value:
    """Whether it is not true; numbers are unless they are 0."""
    return _elementwise_functions["logical_not"](*_true("logical_not", [x]))


def _bits(operation: str, a: Any, b: Any, of_bits: str, of_bool: str | None) -> Value:
    x, y = lifted(operation, [a, b])
    if x.dtype == "bool":
        if of_bool is not None:
            return _elementwise_functions[of_bool](x, y)
        x, y = as_value(x._fusion, x, "int64"), as_value(y._fusion, y, "int64")
    if is_float(x.dtype):
        raise UsageError(f"{operation}: found {x.dtype}, expected integers or bool")
    return _elementwise_functions[of_bits](x, y)


def bitwise_and(a: Any, b: Any) -> Value:
    """The bits that are set in both integers; and of bool."""
    return _bits("bitwise_and", a, b, "bit_and", "logical_and")


def bitwise_or(a: Any, b: Any) -> Value:
    """The bits that are set in one of two integers; or of bool."""
    return _bits("bitwise_or", a, b, "bit_or", "logical_or")


def bitwise_xor(a: Any, b: Any) -> Value:
    """The bits in which two integers differ; exclusive or of bool."""
    return _bits("bitwise_xor", a, b, "bit_xor", "logical_xor")


def bitwise_not(x: Any) -> Value:
    """All bits of an integer turned; not of bool."""
    x = value("bitwise_not", x)
    if x.dtype == "bool":
        return _elementwise_functions["logical_not"](x)
    if is_float(x.dtype):
        raise UsageError(f"bitwise_not: found {x.dtype}, expected integers or bool")
    return -1 - x


def left_shift(a: Any, b: Any) -> Value:
    """The bits of an integer moved up by b places; 0 from as many on as there are."""
    return _bits("left_shift", a, b, "shift_left", None)


def right_shift(a: Any, b: Any) -> Value:
    """The bits of an integer moved down by b places; the sign comes in from above."""
    return _bits("right_shift", a, b, "shift_right", None)


def bitwise_count(x: Any) -> Value:
    """How many bits of |x| are set."""
    x = _elementwise_functions["abs"](value("bitwise_count", x))
    if x.dtype not in ("int32", "int64"):
        raise UsageError(f"bitwise_count: found {x.dtype}, expected integers")
    wide = x.dtype == "int64"
    every = 0x0101010101010101 if wide else 0x01010101
    x = x - (right_shift(x, 1) & (0x55 * every))
    x = (x & (0x33 * every)) + (right_shift(x, 2) & (0x33 * every))
    x = (x + right_shift(x, 4)) & (0x0F * every)
    return right_shift(x * every, 56 if wide else 24)


def clip(
    x: Any, min: Any = None, max: Any = None, *, a_min: Any = None, a_max: Any = None
) -> Value:
    """Elements within [min, max]; NaN stays."""
    low, high = a_min if min is None else min, a_max if max is None else max
    x = value("clip", x, low, high)
    if low is not None:
        x = _elementwise_functions["maximum"](x, low)
    return x if high is None else _elementwise_functions["minimum"](x, high)


def round(x: Any, decimals: int = 0) -> Value:
    """Rounds to `decimals` decimals, halves to the even digit."""
    x = value("round", x)
    if not is_float(x.dtype):
        if decimals >= 0:
            return x
        raise UsageError(f"round: found decimals={decimals} of {x.dtype}, expected none below 0")
    rounded = _elementwise_functions["round"]
    if decimals == 0:
        return rounded(x)
    scale = 10.0 ** builtins.abs(decimals)
    wide = raised(x)
    wide = rounded(wide * scale) / scale if decimals > 0 else rounded(wide / scale) * scale
    return astype(wide, x.dtype)


def rint(x: Any) -> Value:
    """To the nearest whole number in floats, halves to the even one."""
    return _elementwise_functions["round"](x)


def floor(x: Any) -> Value:
    """The whole number next to x toward minus infinity; integers stay."""
    x = value("floor", x)
    return _elementwise_functions["floor"](x) if is_float(x.dtype) else x


def ceil(x: Any) -> Value:
    """The whole number next to x toward infinity; integers stay."""
    x = value("ceil", x)
    return _elementwise_functions["ceil"](x) if is_float(x.dtype) else x


def log2(x: Any) -> Value:
    """Logarithm to base 2, exact for powers of 2."""
    return _logarithm("log2", x, 1 / math.log(2))


def log10(x: Any) -> Value:
    """Logarithm to base 10, exact for powers of 10."""
    return _logarithm("log10", x, 1 / math.log(10))


def _logarithm(operation: str, x: Any, scale: float) -> Value:
    """Within some units of the last place a whole number is as good as any other, and exact for
    powers of the base."""
    x = floating(operation, x)
    found = _elementwise_functions["log"](raised(x)) * scale
    whole = _elementwise_functions["round"](found)
    away = whole - found
    unit = 2.0**-52 if found.dtype == "float64" else 2.0**-23
    near = _elementwise_functions["abs"](away) <= _elementwise_functions["abs"](whole) * (2 * unit)
    fix = _elementwise_functions["stop_gradient"](where(near, away, 0.0))
    return astype(found + fix, x.dtype)


def tan(x: Any) -> Value:
    """Tangent."""
    return _elementwise_functions["sin"](x) / _elementwise_functions["cos"](x)


def isinf(x: Any) -> Value:
    """Whether an element is infinite."""
    return _elementwise_functions["abs"](floating("isinf", x)) == math.inf


def raised(x: Value) -> Value:
    """Norms and quotients of 16-bit values are computed in float32 and rounded once."""
    return astype(x, "float32") if x.dtype in ("float16", "bfloat16") else x


__all__ = [name for name in public(globals()) if name != "raised"]
