"""Products of matrices, and the loss of a CRF."""

from __future__ import annotations

from typing import Any

from .._errors import UsageError
from .._program.lift import is_one, lifted, make, same_size, shape_text, value
from .._program.value import Value
from . import public, shapes


def matmul(a: Any, b: Any) -> Value:
    """a @ b as in NumPy: (..., M, K) x (..., K, N), with one axis for a vector."""
    x, y = lifted("matmul", [a, b])
    if x.ndim == 0 or y.ndim == 0:
        raise UsageError(f"matmul: found {x!r} and {y!r}, expected at least one axis each")
    row, column = x.ndim == 1, y.ndim == 1
    if row:
        x = shapes.expand_dims(x, 0)
    if column:
        y = shapes.expand_dims(y, 1)
    if not same_size(x._fusion, x.shape[-1], y.shape[-2]):
        texts = [shape_text(x._fusion, v.shape) for v in (x, y)]
        raise UsageError(f"matmul: the inner sizes of {texts[0]} and {texts[1]} differ")
    x, y = _with_equal_batches(x, y)
    result = make("matmul", [x, y], 0, 0)
    gone = [-1] * column + [-2] * row
    return shapes.squeeze(result, gone) if gone else result


def _with_equal_batches(x: Value, y: Value) -> tuple[Value, Value]:
    if y.ndim == 2:
        return x, y
    lead_x, lead_y = x.shape[:-2], y.shape[:-2]
    rank = max(len(lead_x), len(lead_y))
    lead = [1] * rank
    for shape in (lead_x, lead_y):
        for i, size in enumerate(shape, rank - len(shape)):
            if not is_one(size):
                lead[i] = size
    if tuple(lead) != lead_x:
        x = shapes.broadcast_to(x, (*lead, *x.shape[-2:]))
    if tuple(lead) != lead_y:
        y = shapes.broadcast_to(y, (*lead, *y.shape[-2:]))
    return x, y


def semicrf_loss(*operands: Value) -> Value:
    """Semi-Markov CRF negative log-likelihood of each sequence; operands as docs/ir.md has them."""
    return make("semicrf_loss", [value("semicrf_loss", x) for x in operands])


__all__ = public(globals())
