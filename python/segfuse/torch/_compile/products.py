"""Rows of the table: products of matrices, and losses by class."""

from __future__ import annotations

from typing import Any

import torch

from ... import ops as sf
from ..._program.lift import make
from ..._program.value import Value
from .table import Arguments, Result, cast, needs_floats, rows


@rows("mm bmm", refuses=needs_floats)
def _mm(result: Result, self: Value, mat2: Value) -> Value:
    return sf.matmul(self, mat2)


@rows("mv dot", refuses=needs_floats)
def _mv(result: Result, self: Value, vec: Any = None, tensor: Any = None) -> Value:
    return sf.matmul(self, tensor if vec is None else vec)


def _plus(start: Value, product: Value, beta: Any, alpha: Any) -> Value:
    """beta * start + alpha * product; start does not count where beta is 0."""
    dtype = product.dtype
    if dtype in ("float16", "bfloat16"):
        start, product = cast(start, "float32"), cast(product, "float32")
    product = product if alpha == 1 else product * alpha
    if beta != 0:
        product = product + (start if beta == 1 else start * beta)
    return cast(product, dtype)


@rows("addmm", refuses=needs_floats)
def _addmm(result: Result, self: Value, mat1: Value, mat2: Value, beta: Any, alpha: Any) -> Value:
    return _plus(self, sf.matmul(mat1, mat2), beta, alpha)


@rows("baddbmm", refuses=needs_floats)
def _baddbmm(
    result: Result, self: Value, batch1: Value, batch2: Value, beta: Any, alpha: Any
) -> Value:
    return _plus(self, sf.matmul(batch1, batch2), beta, alpha)


@rows("addmv", refuses=needs_floats)
def _addmv(result: Result, self: Value, mat: Value, vec: Value, beta: Any, alpha: Any) -> Value:
    return _plus(self, sf.matmul(mat, vec), beta, alpha)


_NONE, _MEAN, _SUM = 0, 1, 2


def _refuses_targets(arguments: Arguments) -> str | None:
    if arguments["target"].dtype is not torch.int64:
        return "the targets are not int64"
    return needs_floats({"self": arguments["self"]})


def _chosen(self: Value, target: Value, weight: Value | None, ignore: int) -> Any:
    """Where a target counts, its index, and its weight; with the axis of classes."""
    axis = 1 if self.ndim > 1 else 0
    counts = target != ignore
    index = sf.where(counts, target, 0)
    dtype = "float64" if self.dtype == "float64" else "float32"
    if weight is None:
        weights = cast(counts, dtype)
    else:
        weights = sf.where(counts, cast(make("take", [weight, index], 0), dtype), 0.0)
    return axis, counts, index, weights


@rows("nll_loss_forward nll_loss2d_forward", refuses=_refuses_targets)
def _nll_loss(
    result: list[Result], self: Value, target: Value, weight: Value | None, reduction: int,
    ignore_index: int,
) -> tuple[Value, Value]:  # fmt: skip
    axis, counts, index, weights = _chosen(self, target, weight, ignore_index)
    picked = sf.squeeze(make("gather", [self, sf.expand_dims(index, axis)], axis), axis)
    losses = sf.where(counts, -(cast(picked, weights.dtype) * weights), 0.0)
    if reduction == _NONE:
        return losses, sf.full((), 0, weights.dtype, like=self)
    total, loss = sf.sum(weights), sf.sum(losses)
    return (loss / total if reduction == _MEAN else loss), total


@rows("nll_loss_backward nll_loss2d_backward", refuses=_refuses_targets)
def _nll_loss_backward(
    result: Result, grad_output: Value, self: Value, target: Value, weight: Value | None,
    reduction: int, ignore_index: int, total_weight: Value,
) -> Value:  # fmt: skip
    axis, counts, index, weights = _chosen(self, target, weight, ignore_index)
    grad = cast(grad_output, weights.dtype)
    if reduction == _MEAN:
        grad = grad / cast(total_weight, weights.dtype)
    grad = sf.expand_dims(sf.where(counts, -(grad * weights), 0.0), axis)
    classes = sf.arange(self.shape[axis], like=self)
    classes = sf.reshape(classes, (self.shape[axis], *(1,) * (self.ndim - 1 - axis)))
    return sf.where(sf.expand_dims(index, axis) == classes, grad, 0.0)
