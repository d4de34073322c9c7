"""Rows of the table: elementwise operations."""

from __future__ import annotations

import math
from typing import Any

import torch

from ... import ops as sf
from ..._program.value import Value
from .table import Arguments, Result, Types, any_of, cast, needs_floats, rows


def _number(x: Any) -> bool:
    return isinstance(x, (bool, int, float))


def _no_bool(arguments: Arguments) -> str | None:
    operands = [arguments.get("self"), arguments.get("other")]
    if all(x is None or isinstance(x, bool) or _is_bool(x) for x in operands):
        return "segfuse has it for numbers, not for bool"
    return None


def _is_bool(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype is torch.bool


def _only_bool(arguments: Arguments) -> str | None:
    for x in (arguments["self"], arguments.get("other", True)):
        if not _is_bool(x) and not isinstance(x, bool):
            return "segfuse has no operations on bits, only on bool"
    return None


def _unary(names: str, function: Any, types: Types, **how: Any) -> None:
    rows(names, types, numbers="self", **how)(lambda result, self: function(self))


def _binary(names: str, function: Any, types: Types, **how: Any) -> None:
    rows(names, types, **how)(lambda result, self, other: function(self, other))


for _name in (
    "exp", "exp2", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tanh",
    "sigmoid", "erf",
):  # fmt: skip
    _unary(_name, getattr(sf, _name), Types.FLOAT)

for _name in ("neg", "abs", "relu"):
    _unary(_name, getattr(sf, _name), Types.RESULT, refuses=_no_bool)


def _whole_stays(function: Any) -> Any:
    return lambda x: function(x) if x.dtype.endswith(("16", "float32", "float64")) else x


for _name in ("floor", "ceil", "round"):
    _unary(_name, _whole_stays(getattr(sf, _name)), Types.RESULT, refuses=_no_bool)
_unary("trunc", _whole_stays(lambda x: _toward_zero(x)), Types.RESULT, refuses=_no_bool)
_unary("isnan", sf.is_nan, Types.RESULT, refuses=needs_floats)
_unary("isinf", sf.isinf, Types.RESULT, refuses=needs_floats)
_unary("logical_not", lambda x: cast(x, "bool") == 0, Types.ANY)
_unary("bitwise_not", sf.logical_not, Types.ANY, refuses=_only_bool)

for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _binary(f"{_name}.Tensor {_name}.Scalar", getattr(sf, _name), Types.RESULT)

for _name in ("and", "or", "xor"):
    _function = getattr(sf, f"logical_{_name}")
    _binary(
        f"logical_{_name}",
        lambda a, b, f=_function: f(cast(a, "bool"), cast(b, "bool")),
        Types.ANY,
    )
    _binary(
        f"bitwise_{_name}.Tensor bitwise_{_name}.Scalar", _function, Types.RESULT,
        refuses=_only_bool,
    )  # fmt: skip

for _name in ("maximum", "minimum"):
    _binary(_name, getattr(sf, _name), Types.RESULT, refuses=_no_bool)
_binary("div.Tensor div.Scalar", sf.div, Types.FLOAT)
_binary("fmod.Tensor fmod.Scalar", sf.fmod, Types.WIDE, refuses=needs_floats)


@rows("sign", Types.RESULT, refuses=_no_bool, numbers="self")
def _sign(result: Result, self: Value) -> Value:
    """0 for NaN."""
    return cast(self > 0, self.dtype) - cast(self < 0, self.dtype)


@rows("mul.Tensor mul.Scalar", Types.WIDE)
def _mul(result: Result, self: Value, other: Value) -> Value:
    return sf.logical_and(self, other) if self.dtype == "bool" else self * other


@rows("add.Tensor add.Scalar", Types.WIDE, refuses=_no_bool)
def _add(result: Result, self: Value, other: Value, alpha: Any) -> Value:
    return self + (other if _is_one(alpha) else other * alpha)


@rows("sub.Tensor sub.Scalar", Types.WIDE, refuses=_no_bool)
def _sub(result: Result, self: Value, other: Value, alpha: Any) -> Value:
    return self - (other if _is_one(alpha) else other * alpha)


def _is_one(alpha: Any) -> bool:
    return _number(alpha) and alpha == 1


def _toward_zero(x: Value) -> Value:
    return sf.where(x < 0, sf.ceil(x), sf.floor(x))


def _refuses_rounding(arguments: Arguments) -> str | None:
    return None if arguments["rounding_mode"] is None else needs_floats(arguments)


@rows("div.Tensor_mode div.Scalar_mode", Types.FLOAT, refuses=_refuses_rounding)
def _div_rounded(result: Result, self: Value, other: Value, rounding_mode: str | None) -> Value:
    if rounding_mode is None:
        return self / other
    return _toward_zero(self / other) if rounding_mode == "trunc" else _floor_divide(self, other)


def _floor_divide(a: Value, b: Value) -> Value:
    """PyTorch's: the remainder is taken away first; division by 0 as IEEE 754 has it."""
    rest = sf.fmod(a, b)
    quotient = (a - rest) / b
    quotient = sf.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1.0, quotient)
    whole = sf.floor(quotient)
    whole = sf.where(quotient - whole > 0.5, whole + 1.0, whole)
    whole = sf.where(quotient == 0, (a / b) * 0.0, whole)
    return sf.where(b == 0, a / b, whole)


@rows("remainder.Tensor remainder.Scalar", Types.WIDE, refuses=needs_floats)
def _remainder(result: Result, self: Value, other: Value) -> Value:
    rest = sf.fmod(self, other)
    return sf.where((rest != 0) & ((other < 0) != (rest < 0)), rest + other, rest)


def _clamp_bounds(arguments: Arguments) -> str | None:
    bounds = [arguments["min"], arguments["max"]]
    if any(isinstance(x, float) and math.isnan(x) for x in bounds):
        return "a bound is NaN"
    return None


@rows(
    "clamp clamp.Tensor", Types.RESULT, numbers="self min max",
    refuses=any_of(_no_bool, _clamp_bounds),
)  # fmt: skip
def _clamp(result: Result, self: Value, min: Any, max: Any) -> Value:
    if min is not None:
        self = sf.maximum(self, min)
    return self if max is None else sf.minimum(self, max)


def _refuses_power(arguments: Arguments) -> str | None:
    base, exponent = arguments["self"], arguments["exponent"]
    if isinstance(base, torch.Tensor) and not base.dtype.is_floating_point:
        if base.dtype is torch.bool or not isinstance(exponent, int) or not 0 <= exponent <= 8:
            return "segfuse has powers of integers up to the eighth only"
        return None
    return needs_floats(arguments)


@rows("pow.Tensor_Scalar", Types.WIDE, refuses=_refuses_power, numbers="self")
def _pow_number(result: Result, self: Value, exponent: float) -> Value:
    return sf.power(self, exponent)


@rows("pow.Tensor_Tensor pow.Scalar", Types.WIDE, refuses=_refuses_power, numbers="self exponent")
def _pow(result: Result, self: Value, exponent: Value) -> Value:
    return sf.pow(self, exponent)


@rows("where.self", Types.RESULT)
def _where(result: Result, condition: Value, self: Value, other: Value) -> Value:
    return sf.where(condition, self, other)


@rows("gelu", Types.WIDE, refuses=needs_floats, numbers="self")
def _gelu(result: Result, self: Value, approximate: str) -> Value:
    return sf.gelu(self, approximate == "tanh")
