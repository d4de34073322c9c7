"""Softmax, norms and activations."""

from __future__ import annotations

from typing import Any

from .. import _native
from .._errors import UsageError
from .._numbers import real
from .._program.lift import common_dtype, floating, value
from .._program.value import Value
from . import creation, elementwise, public, shapes
from .elementwise import raised
from .shapes import axis_of


def softmax(x: Any, axis: int = -1) -> Value:
    """exp(x) / sum(exp(x)) along `axis`, without overflow.

    Scores of any size keep their digits: the maximum is subtracted first. A row that is -inf
    throughout, or has +inf, gives NaN.
    """
    x = floating("softmax", x)
    return Value(x._fusion, _native.softmax(x._native, axis_of("softmax", x, axis)))


def log_softmax(x: Any, axis: int = -1) -> Value:
    """log(softmax(x)) along `axis`: (x - max(x)) - log(sum(exp(x - max(x))))."""
    x = floating("log_softmax", x)
    return Value(x._fusion, _native.log_softmax(x._native, axis_of("log_softmax", x, axis)))


def gelu(x: Any, approximate: bool = False) -> Value:
    """x * (1 + erf(x / sqrt 2)) / 2, or its approximation by tanh."""
    x = floating("gelu", x)
    return Value(x._fusion, (_native.gelu_tanh if approximate else _native.gelu)(x._native))


def silu(x: Any) -> Value:
    """x * sigmoid(x)."""
    x = floating("silu", x)
    return Value(x._fusion, _native.silu(x._native))


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
        result = result * (raised(scale) if isinstance(scale, Value) else scale)
    if shift is not None:
        result = result + (raised(shift) if isinstance(shift, Value) else shift)
    return result if result.dtype == dtype else elementwise.astype(result, dtype)


def layer_norm(x: Any, scale: Any = None, shift: Any = None, epsilon: float = 1e-5) -> Value:
    """(x - mean) / sqrt(variance + epsilon) over the last axis, times scale (C), plus shift (C)."""
    x = floating("layer_norm", x)
    result = Value(
        x._fusion, _native.layer_norm(raised(x)._native, real("layer_norm: epsilon", epsilon))
    )
    return _affine("layer_norm", x, result, scale, shift)


def rms_norm(x: Any, scale: Any = None, epsilon: float = 1e-6) -> Value:
    """x / sqrt(mean(x^2) + epsilon) over the last axis, times scale (C)."""
    x = floating("rms_norm", x)
    result = Value(
        x._fusion, _native.rms_norm(raised(x)._native, real("rms_norm: epsilon", epsilon))
    )
    return _affine("rms_norm", x, result, scale, None)


def _channels(x: Value, parameter: Any) -> Any:
    """(C) as it meets the second axis of (B, C, ...)."""
    if parameter is None or isinstance(parameter, (int, float)):
        return parameter
    parameter = value("per channel", parameter, x)
    return shapes.reshape(parameter, (parameter.shape[0], *(1,) * (x.ndim - 2)))


def instance_norm(x: Any, scale: Any = None, shift: Any = None, epsilon: float = 1e-5) -> Value:
    """x (B, C, ...): standardised over the axes after the second; scale and shift are (C)."""
    x = floating("instance_norm", x)
    result = Value(
        x._fusion,
        _native.instance_norm(raised(x)._native, real("instance_norm: epsilon", epsilon)),
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
    zeros_ = creation.zeros_like(ones_)
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
    variance = raised(value(operation, variance, x))
    inverse = elementwise.rsqrt(variance + epsilon)
    mean = _parameter(operation, x, _channels(x, mean))
    centred = raised(x) - (raised(mean) if isinstance(mean, Value) else mean)
    return _affine(
        operation, x, centred * _channels(x, inverse), _channels(x, scale), _channels(x, shift)
    )


__all__ = public(globals())
