"""Activations and attention, as jax.nn has them."""

from __future__ import annotations

import math
from typing import Any

from .._errors import UsageError
from .._program.lift import floating, lifted, value
from .._program.value import Value
from . import creation, layers, products, public, reductions, shapes
from . import elementwise as e
from .elementwise import raised
from .shapes import axis_of


def _back(result: Value, x: Value) -> Value:
    return e.astype(result, x.dtype)


def relu6(x: Any) -> Value:
    """min(max(x, 0), 6)."""
    return e.minimum(e.maximum(value("relu6", x), 0), 6)


def elu(x: Any, alpha: Any = 1.0) -> Value:
    """x above 0, alpha * (exp(x) - 1) below."""
    x = floating("elu", x)
    return e.where(x > 0, x, e.expm1(e.minimum(x, 0.0)) * alpha)


def selu(x: Any) -> Value:
    """The elu of self-normalising networks: 1.0507 * elu(x, 1.6733)."""
    return elu(x, 1.6732632423543772) * 1.0507009873554805


def celu(x: Any, alpha: Any = 1.0) -> Value:
    """x above 0, alpha * (exp(x / alpha) - 1) below."""
    x = floating("celu", x)
    return e.where(x > 0, x, e.expm1(e.minimum(x, 0.0) / alpha) * alpha)


def leaky_relu(x: Any, negative_slope: Any = 0.01) -> Value:
    """x above 0, negative_slope * x below."""
    x = floating("leaky_relu", x)
    return e.where(x >= 0, x, x * negative_slope)


def glu(x: Any, axis: int = -1) -> Value:
    """The first half along `axis` times the sigmoid of the second."""
    x = floating("glu", x)
    axis = axis_of("glu", x, axis)
    a, b = shapes.split(x, 2, axis)
    return a * e.sigmoid(b)


def log_sigmoid(x: Any) -> Value:
    """log(sigmoid(x)) without overflow."""
    return -e.softplus(-floating("log_sigmoid", x))


def hard_tanh(x: Any) -> Value:
    """x within [-1, 1]."""
    return e.clip(floating("hard_tanh", x), -1.0, 1.0)


def hard_sigmoid(x: Any) -> Value:
    """relu6(x + 3) / 6."""
    return relu6(floating("hard_sigmoid", x) + 3.0) / 6.0


def hard_silu(x: Any) -> Value:
    """x * relu6(x + 3) / 6."""
    x = floating("hard_silu", x)
    return x * hard_sigmoid(x)


def soft_sign(x: Any) -> Value:
    """x / (|x| + 1)."""
    x = floating("soft_sign", x)
    return x / (e.where(x < 0, -x, x) + 1.0)


def mish(x: Any) -> Value:
    """x * tanh(softplus(x))."""
    x = floating("mish", x)
    wide = raised(x)
    return _back(wide * e.tanh(e.softplus(wide)), x)


def squareplus(x: Any, b: Any = 4) -> Value:
    """(x + sqrt(x^2 + b)) / 2."""
    x = floating("squareplus", x)
    wide = raised(x)
    return _back((wide + e.sqrt(wide * wide + b)) * 0.5, x)


def sparse_plus(x: Any) -> Value:
    """0 below -1, (x + 1)^2 / 4 up to 1, x above."""
    x = floating("sparse_plus", x)
    return e.where(x <= -1, 0.0, e.where(x >= 1, x, e.square(x + 1.0) * 0.25))


def sparse_sigmoid(x: Any) -> Value:
    """(x + 1) / 2 within [0, 1]."""
    return e.clip((floating("sparse_sigmoid", x) + 1.0) * 0.5, 0.0, 1.0)


def log1mexp(x: Any) -> Value:
    """log(1 - exp(-x)) for x > 0, without cancellation."""
    x = floating("log1mexp", x)
    wide = raised(x)
    near = wide < math.log(2)
    low = e.log(-e.expm1(-e.where(near, wide, 1.0)))
    return _back(e.where(near, low, e.log1p(-e.exp(-e.where(near, 1.0, wide)))), x)


def logmeanexp(x: Any, axis: Any = None, where: Any = None, keepdims: bool = False) -> Value:
    """log(mean(exp(x))) over `axis`, without overflow."""
    x = floating("logmeanexp", x)
    if where is None:
        total = reductions.logsumexp(x, axis, keepdims)
        return total - e.log(reductions.count(x, axis, total.dtype))
    mask = creation.zeros_like(x, "bool") | where
    total = reductions.logsumexp(e.where(mask, x, -math.inf), axis, keepdims)
    return total - e.log(reductions.sum(e.astype(mask, total.dtype), axis, keepdims=keepdims))


def standardize(x: Any, axis: Any = -1, epsilon: float = 1e-5) -> Value:
    """(x - mean) / sqrt(variance + epsilon) over `axis`."""
    x = floating("standardize", x)
    wide = raised(x)
    centred = wide - reductions.mean(wide, axis, keepdims=True)
    variance = reductions.var(wide, axis, keepdims=True)
    return _back(centred * e.rsqrt(variance + epsilon), x)


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
) -> Value:
    """softmax(scale * query @ key^T + bias) @ value over heads.

    query (B, T, N, H), key and value (B, S, K, H) with N a multiple of K, or all without B; bias
    (added) and mask (True: look there) broadcast to (B, N, T, S). `scale` is 1 / sqrt(H) if it is
    None. With `is_causal` place t sees places up to t. A row that sees nothing is NaN.
    """
    q, k, v = lifted("dot_product_attention", [query, key, value], floating=True)
    lone = q.ndim == 3
    if lone:
        q, k, v = (shapes.expand_dims(x, 0) for x in (q, k, v))
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
        raise UsageError(
            f"dot_product_attention: found {q!r}, {k!r} and {v!r}, expected (B, T, N, H), "
            "(B, S, K, H) and (B, S, K, H)"
        )
    heads, width = int(q.shape[2]), int(q.shape[3])
    groups, left = heads // int(k.shape[2]), heads % int(k.shape[2])
    if left:
        raise UsageError(
            f"dot_product_attention: found {heads} heads of the query and {int(k.shape[2])} of "
            "the key, expected a multiple"
        )
    q, k, v = (shapes.transpose(x, (0, 2, 1, 3)) for x in (q, k, v))
    if groups > 1:
        k, v = (_repeated_heads(x, groups) for x in (k, v))
    scores = e.raised(products.matmul(q, shapes.swapaxes(k, -1, -2)))
    scores = scores * (1 / math.sqrt(width) if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    rows, columns = scores.shape[-2:]
    if is_causal:
        row = shapes.expand_dims(creation.arange(rows, like=scores), 1)
        scores = e.where(creation.arange(columns, like=scores) <= row, scores, -math.inf)
    if mask is not None:
        scores = e.where(mask, scores, -math.inf)
    weights = _back(layers.softmax(scores, -1), q)
    result = shapes.transpose(products.matmul(weights, v), (0, 2, 1, 3))
    return shapes.squeeze(result, 0) if lone else result


def _repeated_heads(x: Value, groups: int) -> Value:
    b, heads, rows, width = x.shape
    wide = shapes.broadcast_to(shapes.expand_dims(x, 2), (b, heads, groups, rows, width))
    return shapes.reshape(wide, (b, heads * groups, rows, width))


__all__ = public(globals())
