"""Elementary functions that are composed, by formulas without cancellation or needless overflow.

Bounds are for float32 and float64, in units of the last place, where no other is said: 4. 16-bit
values are computed in float32 and rounded once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .._dtypes import is_float
from .._errors import UsageError
from .._program.lift import as_value, common_dtype, fusion_of, lifted, make, value, value_of
from .._program.value import Value
from . import creation, public, reductions
from . import elementwise as e

_LN2 = math.log(2)


def _in_floats(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of values of one float type, at least float32."""
    name = function.__name__

    @functools.wraps(function)
    def wrapped(*operands: Any) -> Any:
        values = lifted(name, operands, floating=True)
        dtype = values[0].dtype
        result = function(*(e.raised(v) for v in values))
        if isinstance(result, Value):
            return e.astype(result, dtype) if is_float(result.dtype) else result
        return tuple(e.astype(r, dtype) for r in result)

    return wrapped


def _size_of(x: Value) -> Value:
    """|x|, with the gradient 1 at 0: odd functions need one there."""
    return e.where(x < 0, -x, x)


def _odd(function: Callable[[Value], Value], x: Value) -> Value:
    """An odd function that is given where x >= 0; keeps the sign of zero."""
    result = function(_size_of(x))
    return e.where(x < 0, -result, e.where(x == 0, x, result))


# --- hyperbolic ---


def _half_exponentials(x: Value) -> tuple[Value, Value]:
    """exp(x) / 2 and exp(-x) / 2, finite as far as they are."""
    up, down = e.exp(x * 0.5), e.exp(x * -0.5)
    return up * 0.5 * up, down * 0.5 * down


@_in_floats
def sinh(x: Any) -> Any:
    """Hyperbolic sine."""
    up, down = _half_exponentials(x)
    small = e.clip(x, -20.0, 20.0)
    near = (e.expm1(small) - e.expm1(-small)) * 0.5
    return e.where(e.abs(x) > 20.0, up - down, near)


@_in_floats
def cosh(x: Any) -> Any:
    """Hyperbolic cosine."""
    up, down = _half_exponentials(x)
    return up + down


def _large(x: Value) -> float:
    """Beyond it x * x + 1 is x * x."""
    return 2.0**13 if x.dtype == "float32" else 2.0**28


@_in_floats
def arcsinh(x: Any) -> Any:
    """Inverse hyperbolic sine."""

    def positive_half(a: Value) -> Value:
        large = _large(a)
        near = e.minimum(a, large)
        square = near * near
        small = e.log1p(near + square / (e.sqrt(square + 1.0) + 1.0))
        return e.where(a > large, e.log(e.maximum(a, 1.0)) + _LN2, small)

    return _odd(positive_half, x)


@_in_floats
def arccosh(x: Any) -> Any:
    """Inverse hyperbolic cosine; NaN below 1."""
    large = _large(x)
    t = e.minimum(x, large) - 1.0
    small = e.log1p(t + e.sqrt(t) * e.sqrt(t + 2.0))  # the derivative at 1 is inf
    found = e.where(x > large, e.log(e.maximum(x, 1.0)) + _LN2, small)
    return e.where(x < 1.0, math.nan, found)  # far below, t and its root cancel


@_in_floats
def arctanh(x: Any) -> Any:
    """Inverse hyperbolic tangent; infinite at -1 and 1, NaN beyond."""
    return (e.log1p(x) - e.log1p(-x)) * 0.5


# --- arcs ---


@_in_floats
def arctan2(a: Any, b: Any) -> Any:
    """The angle of the point (b, a), within [-pi, pi]."""
    return e.atan2(a, b)


@_in_floats
def arctan(x: Any) -> Any:
    """Inverse tangent, within [-pi / 2, pi / 2]."""
    return e.atan2(x, 1.0)


@_in_floats
def arcsin(x: Any) -> Any:
    """Inverse sine, within [-pi / 2, pi / 2]; NaN beyond -1 and 1."""
    # With one root of the product, the derivative at 1 would be inf * 0.
    return e.atan2(x, e.sqrt(1.0 - x) * e.sqrt(1.0 + x))


@_in_floats
def arccos(x: Any) -> Any:
    """Inverse cosine, within [0, pi]; NaN beyond -1 and 1."""
    return e.atan2(e.sqrt(1.0 - x), e.sqrt(1.0 + x)) * 2.0


# --- roots, powers, logarithms ---


@_in_floats
def cbrt(x: Any) -> Any:
    """The real cube root."""

    minus = signbit(x)
    size = e.where(minus, -x, x)
    plain = (size > 0) & e.is_finite(size)
    safe = e.where(plain, size, 1.0)
    first = e.pow(safe, 1.0 / 3.0)
    better = first - (first - safe / (first * first)) * (1.0 / 3.0)  # Newton
    # At 0, infinity and NaN the square root has the same value and slope.
    root = e.where(plain, better, e.sqrt(size))
    return e.where(minus, -root, root)


@_in_floats
def hypot(a: Any, b: Any) -> Any:
    """sqrt(a * a + b * b) without overflow; infinite if one of them is."""
    size = e.maximum(e.abs(a), e.abs(b))
    infinite = e.isinf(a) | e.isinf(b)
    plain = ~infinite & (size > 0)
    # The result does not depend on the scale, so no derivative goes through it.
    scale = e.stop_gradient(e.where(plain, size, 1.0))
    x, y = e.where(plain, a, 1.0) / scale, e.where(plain, b, 0.0) / scale
    result = scale * e.sqrt(x * x + y * y)
    other = e.where(infinite, math.inf, e.stop_gradient(size))
    return e.where(plain, result, other)


def _log_of_sum(a: Value, b: Value, power: Callable[[Value], Value], scale: float) -> Value:
    """log(power(a) + power(b)) in the base of power, whose natural logarithm is 1 / scale."""
    same = a == b
    most, least = e.maximum(a, b), e.minimum(a, b)
    distance = e.where(same, 1.0, most - least)
    apart = most + e.log1p(power(-distance)) * scale
    zero = e.where(same & e.is_finite(a), a - b, 0.0)  # the second derivative is not 0 there
    together = a * 0.5 + b * 0.5 + zero * zero * (0.125 / scale) + _LN2 * scale
    return e.where(same, together, apart)


@_in_floats
def logaddexp(a: Any, b: Any) -> Any:
    """log(exp(a) + exp(b)) without overflow."""
    return _log_of_sum(a, b, e.exp, 1.0)


@_in_floats
def logaddexp2(a: Any, b: Any) -> Any:
    """log2(2**a + 2**b) without overflow."""
    return _log_of_sum(a, b, e.exp2, 1 / _LN2)


@_in_floats
def sinc(x: Any) -> Any:
    """sin(pi x) / (pi x), 1 at 0."""
    at_zero = x == 0
    angle = e.where(at_zero, 1.0, x * math.pi)
    square = e.square(e.where(at_zero, x, 0.0))  # 1 - square: the second derivative
    return e.where(at_zero, 1.0 - square * (math.pi**2 / 6), e.sin(angle) / angle)


def ldexp(x: Any, exponent: Any) -> Value:
    """x * 2**exponent, rounded once; the exponents are integers."""
    dtype = value("ldexp", exponent, x).dtype
    if is_float(dtype):
        raise UsageError(f"ldexp: found exponents of {dtype}, expected integers")
    return _scaled(x, exponent)


@_in_floats
def _scaled(x: Any, exponent: Any) -> Any:
    # As in C libraries: no factor overflows, and a step down leaves all digits to the next one.
    most, least = (1023, -969) if x.dtype == "float64" else (127, -102)
    for _ in range(3):
        step = e.clip(exponent, least, most)
        x, exponent = x * e.exp2(step), exponent - step
    return x


def float_power(a: Any, b: Any) -> Value:
    """a ** b in floats."""
    x, y = lifted("float_power", [a, b], floating=True)
    return e.power(x, b if isinstance(b, (int, float)) else y)


# --- angles ---


def fabs(x: Any) -> Value:
    """|x|, of floats."""
    return e.abs(lifted("fabs", [x], floating=True)[0])


def deg2rad(x: Any) -> Value:
    """Degrees as radians."""
    return lifted("deg2rad", [x], floating=True)[0] * (math.pi / 180)


def rad2deg(x: Any) -> Value:
    """Radians as degrees."""
    return lifted("rad2deg", [x], floating=True)[0] * (180 / math.pi)


# --- signs and parts ---


def trunc(x: Any) -> Value:
    """The whole number next to x toward zero."""
    x = value("trunc", x)
    return e.where(x < 0, e.ceil(x), e.floor(x)) if is_float(x.dtype) else x


def modf(x: Any) -> tuple[Value, Value]:
    """The fraction and the whole part, both with the sign of x."""
    x = lifted("modf", [x], floating=True)[0]
    whole = trunc(x)
    near = e.where(e.isinf(x), 0.0, whole)
    fraction = e.where(signbit(x), -(near - x), x - near)  # -0.0 of -2.0, with the slope 1
    return e.where(e.isinf(x), copysign(0.0, x), fraction), whole


def divmod(a: Any, b: Any) -> tuple[Value, Value]:
    """The floor of the quotient, and the rest."""
    return e.floor_divide(a, b), e.remainder(a, b)


def signbit(x: Any) -> Value:
    """Whether the sign is minus, that of -0.0 as well; False for NaN."""
    x = value("signbit", x)
    if not is_float(x.dtype):
        return x < 0
    return (x < 0) | ((x == 0) & (1.0 / x < 0))


def copysign(a: Any, b: Any) -> Value:
    """|a| with the sign of b."""
    x, y = lifted("copysign", [a, b], floating=True)
    return e.where(signbit(x) == signbit(y), x, -x)


def heaviside(x: Any, at_zero: Any) -> Value:
    """0 below 0, 1 above, `at_zero` at 0; NaN stays."""
    x, at_zero = lifted("heaviside", [x, at_zero], floating=True)
    step = e.where(x > 0, creation.ones_like(x), creation.zeros_like(x))
    return e.where(e.is_nan(x), x, e.where(x == 0, at_zero, step))


def fmax(a: Any, b: Any) -> Value:
    """The greater one; where one is NaN the other."""
    x, y = lifted("fmax", [a, b])
    if not is_float(x.dtype):
        return e.maximum(x, y)
    return e.where(e.is_nan(x), y, e.where(e.is_nan(y), x, e.maximum(x, y)))


def fmin(a: Any, b: Any) -> Value:
    """The lesser one; where one is NaN the other."""
    x, y = lifted("fmin", [a, b])
    if not is_float(x.dtype):
        return e.minimum(x, y)
    return e.where(e.is_nan(x), y, e.where(e.is_nan(y), x, e.minimum(x, y)))


def positive(x: Any) -> Value:
    """The value itself."""
    return value("positive", x)


def real(x: Any) -> Value:
    """The value itself: all numbers are real."""
    return value("real", x)


def conjugate(x: Any) -> Value:
    """The value itself: all numbers are real."""
    return value("conjugate", x)


def imag(x: Any) -> Value:
    """Zeros: all numbers are real."""
    return creation.zeros_like(x)


def angle(x: Any, deg: bool = False) -> Value:
    """0 for numbers that are not negative, pi for others; NaN stays."""
    x = lifted("angle", [x], floating=True)[0]
    turned = e.where(signbit(x), 180.0 if deg else math.pi, e.where(e.is_nan(x), x, 0.0))
    return e.astype(turned, x.dtype)


# --- tests ---


def isposinf(x: Any) -> Value:
    """Whether an element is plus infinity."""
    return lifted("isposinf", [x], floating=True)[0] == math.inf


def isneginf(x: Any) -> Value:
    """Whether an element is minus infinity."""
    return lifted("isneginf", [x], floating=True)[0] == -math.inf


def isreal(x: Any) -> Value:
    """True: all numbers are real."""
    return creation.ones_like(x, "bool")


def iscomplex(x: Any) -> Value:
    """False: all numbers are real."""
    return creation.zeros_like(x, "bool")


def isclose(
    a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Value:
    """Whether |a - b| <= atol + rtol * |b|; infinities are close to themselves."""
    x, y = lifted("isclose", [a, b], floating=True)
    x, y = e.raised(x), e.raised(y)
    finite = e.is_finite(x) & e.is_finite(y)
    safe_x, safe_y = e.where(finite, x, 0.0), e.where(finite, y, 0.0)
    near = e.abs(safe_x - safe_y) <= e.abs(safe_y) * rtol + atol
    result = e.where(finite, near, x == y)
    return result | (e.is_nan(x) & e.is_nan(y)) if equal_nan else result


def allclose(
    a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Value:
    """Whether all elements are close, as `isclose` has it."""
    return reductions.all(isclose(a, b, rtol, atol, equal_nan))


def array_equal(a: Any, b: Any, equal_nan: bool = False) -> Value:
    """Whether shapes and all elements are equal."""
    return _equal("array_equal", a, b, equal_nan, stretch=False)


def array_equiv(a: Any, b: Any) -> Value:
    """Whether shapes broadcast, and all elements are equal then."""
    return _equal("array_equiv", a, b, False, stretch=True)


def _equal(operation: str, a: Any, b: Any, equal_nan: bool, stretch: bool) -> Value:
    x, y = lifted(operation, [a, b])
    sizes = [tuple(int(s) for s in v.shape) for v in (x, y)]
    if sizes[0] != sizes[1]:
        try:
            agree = stretch and np.broadcast_shapes(*sizes) is not None
        except ValueError:
            agree = False
        if not agree:
            return creation.full((), 0, "bool", like=x)
    same = x == y
    if equal_nan and is_float(x.dtype):
        same = same | (e.is_nan(x) & e.is_nan(y))
    return reductions.all(same)


def nan_to_num(
    x: Any,
    copy: bool = True,
    nan: Any = 0.0,
    posinf: Any = None,
    neginf: Any = None,
) -> Value:
    """NaN becomes `nan`; infinities become `posinf`, `neginf`, or the largest number there is."""
    x = value("nan_to_num", x)
    if not is_float(x.dtype):
        return x
    most = _MOST[x.dtype]
    posinf = most if posinf is None else posinf
    neginf = -most if neginf is None else neginf
    x = e.where(e.is_nan(x), nan, x)
    return e.where(x == math.inf, posinf, e.where(x == -math.inf, neginf, x))


_MOST = {name: float(np.finfo(name).max) for name in ("float16", "float32", "float64")}
_MOST["bfloat16"] = float.fromhex("0x1.fep127")


# --- choices ---


def select(conditions: Any, choices: Any, default: Any = 0) -> Value:
    """The choice of the first condition that holds; `default` where none does."""
    conditions, choices = list(conditions), list(choices)
    if len(conditions) != len(choices) or not conditions:
        raise UsageError(
            f"select: found {len(conditions)} conditions and {len(choices)} choices, expected as "
            "many of one as of the other, and at least one"
        )
    result = default
    for condition, choice in zip(conditions[::-1], choices[::-1], strict=True):
        result = e.where(condition, choice, result)
    fusion = fusion_of("select", [*conditions, *choices, default])
    dtype = common_dtype([value_of(fusion, "select", x) for x in [*choices, default]])
    return as_value(fusion, value("select", result, *conditions, *choices), dtype)


def choose(index: Any, choices: Any, mode: str = "raise") -> Value:
    """Elementwise choices[index]. The modes "wrap" and "clip" bring an index that names none into
    the range of those that do."""
    index = value("choose", index, *choices)
    count = len(choices)
    if mode not in ("raise", "wrap", "clip"):
        raise UsageError(f"choose: found the mode {mode!r}, expected 'raise', 'wrap' or 'clip'")
    if index.dtype == "bool":
        index = e.astype(index, "int32")
    if mode == "raise":  # the run refuses one that names none
        index = make("take", [creation.arange(count, like=index), index], 0)
    elif mode == "wrap":
        index = e.remainder(index, count)
    result = choices[-1]
    for n in range(count - 2, -1, -1):
        result = e.where(index <= n, choices[n], result)
    return result if isinstance(result, Value) else creation.zeros_like(index) + result


def piecewise(x: Any, conditions: Any, functions: Any) -> Value:
    """functions[i](x), or the number functions[i], where conditions[i] is the last that holds; one
    more function is for where none does."""
    x = value("piecewise", x)
    conditions, functions = list(conditions), list(functions)
    if len(functions) not in (len(conditions), len(conditions) + 1):
        raise UsageError(
            f"piecewise: found {len(conditions)} conditions and {len(functions)} functions, "
            "expected as many or one more"
        )
    if len(functions) == len(conditions):
        functions.append(0)
    results = [f(x) if callable(f) else f for f in functions]
    result = creation.zeros_like(x) + results[-1]
    for condition, other in zip(conditions, results[:-1], strict=True):
        result = e.where(condition, other, result)
    return e.astype(result, x.dtype)


__all__ = public(globals())
