"""The operations of `_ops` under PyTorch's autograd and its transforms (torch.func, forward mode).

Graphs (torch.compile, torch.export) hold the opaque operations, which have the same backward pass.
`vmap` goes over the rows of all examples at once where examples share the other scores, and over
the examples one by one where they do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._errors import UsageError
from . import _ops as ops

ROW_INPUTS = (0, 5, 6, 8, 9, 14, 18, 19)
"""The inputs with an axis of rows: emission, start, end, lengths, labels, allowed, known_labels and
boundaries."""
_SEGMENTS = slice(10, 14)
_OF_ROWS = sum(1 << i for i, name in enumerate(ops.DIFFERENTIABLE) if name in ops.PER_ROW)


def rows(*inputs: Any) -> Tensor:
    """The value of each row."""
    if torch.compiler.is_compiling():
        return torch.ops.segfuse.rows(*inputs)
    return _Rows.apply(*inputs)


def weighted(weights: Tensor, *inputs: Any) -> Tensor:
    """The weighted sum of the values, along with the gradients whose bits are in the last input."""
    if torch.compiler.is_compiling():
        return torch.ops.segfuse.weighted(weights, *inputs)[0]
    return _Weighted.apply(weights, *inputs)[0]


def has_tangent(score: Tensor | None) -> bool:
    """Whether forward-mode differentiation goes through a score."""
    if score is None or torch.compiler.is_compiling():
        return False
    return forward_ad.unpack_dual(score).tangent is not None


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        return torch.ops.segfuse.rows(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ops.save_inputs(ctx, inputs, output)
        ctx.save_for_forward(*inputs[: ops.TENSORS])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        if grad is None:
            return ops.input_gradients((None,) * len(ops.DIFFERENTIABLE))
        return ops.rows_backward(ctx, grad, _Gradients.apply)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return _row_tangents((*ctx.saved_tensors, *ctx.numbers), tangents)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        together = _as_more_rows(info.batch_size, in_dims, inputs)
        if together is not None:
            batch = together[0].shape[0] // info.batch_size if info.batch_size else 0
            return _Rows.apply(*together).unflatten(0, (info.batch_size, batch)), 0
        one = lambda *x: (_Rows.apply(*x),)  # noqa: E731
        return _one_by_one(one, info, in_dims, inputs)[0], 0


class _Gradients(torch.autograd.Function):
    @staticmethod
    def forward(weights: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
        return torch.ops.segfuse.gradients(weights, *inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        raise RuntimeError(ops.NO_SECOND_DERIVATIVE)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise RuntimeError(ops.NO_SECOND_DERIVATIVE)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], Any]:
        needed = inputs[-1]
        if needed & ~_OF_ROWS == 0:
            together = _as_more_rows(info.batch_size, in_dims[1:-1], inputs[1:-1])
            if together is not None:
                weights = _leading(inputs[0], in_dims[0], info.batch_size).flatten()
                found = _Gradients.apply(weights, *together, needed)
                batch = weights.shape[0] // info.batch_size if info.batch_size else 0
                sizes = (info.batch_size, batch)
                parts = tuple(
                    x.unflatten(0, sizes) if needed >> i & 1 else x for i, x in enumerate(found)
                )
                return parts, tuple(0 if needed >> i & 1 else None for i in range(len(parts)))
        parts = _one_by_one(_Gradients.apply, info, in_dims, inputs)
        return parts, (0,) * len(parts)


class _Weighted(torch.autograd.Function):
    """Its gradients are outputs, so one call of the engine does for value and backward pass."""

    @staticmethod
    def forward(weights: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
        return torch.ops.segfuse.weighted(weights, *inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ops.save_gradients(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        return ops.weighted_backward(ctx, *grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise RuntimeError(ops.NO_SECOND_DERIVATIVE)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], Any]:
        parts = _one_by_one(_Weighted.apply, info, in_dims, inputs)
        return parts, (0,) * len(parts)


def _row_tangents(inputs: tuple[Any, ...], tangents: tuple[Any, ...]) -> Tensor:
    """The derivative of each row's value along the tangents of the scores."""
    given = tangents[: len(ops.DIFFERENTIABLE)]
    needed = sum(1 << i for i, tangent in enumerate(given) if tangent is not None)
    emission = inputs[0]
    ones = emission.new_ones(emission.shape[0], dtype=torch.float64)
    if needed & ~_OF_ROWS == 0:
        gradients = _Gradients.apply(ones, *inputs, needed)
        return _along(gradients, given, start_dim=1)
    # The gradients by scores that rows share come as sums over rows, so each row goes by itself.
    totals = []
    for row in range(emission.shape[0]):
        gradients = _Gradients.apply(ones[row : row + 1], *_one_row(inputs, row), needed)
        own = [
            None if x is None else x[row : row + 1] if i in ROW_INPUTS else x
            for i, x in enumerate(given)
        ]
        totals.append(_along(gradients, own, start_dim=0))
    return torch.stack(totals) if totals else ones


def _along(gradients: Any, tangents: Any, *, start_dim: int) -> Tensor:
    """The sums of gradient * tangent over the axes from `start_dim` on."""
    terms = [
        (gradient.double() * tangent.double()).flatten(start_dim).sum(-1)
        for gradient, tangent in zip(gradients, tangents, strict=True)
        if tangent is not None
    ]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _one_row(inputs: tuple[Any, ...], row: int) -> list[Any]:
    """The inputs of a batch with that row only."""
    found = list(inputs)
    for i in ROW_INPUTS:
        if found[i] is not None:
            found[i] = found[i][row : row + 1]
    if found[10] is not None:
        pointer, *columns = found[_SEGMENTS]
        first, last = int(pointer[row]), int(pointer[row + 1])
        found[_SEGMENTS] = [pointer[row : row + 2] - first, *(x[first:last] for x in columns)]
    return found


def _leading(x: Tensor, dim: int | None, size: int) -> Tensor:
    """The tensor with the axis of the examples in front."""
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _as_more_rows(size: int, in_dims: Any, inputs: Any) -> list[Any] | None:
    """The rows of all examples as one batch; None where examples have other scores of their own."""
    alike = all(dim is None or i in ROW_INPUTS for i, dim in enumerate(in_dims))
    if size == 0 or not alike or inputs[10] is not None:
        return None
    return [
        _leading(x, dim, size).flatten(0, 1) if i in ROW_INPUTS and x is not None else x
        for i, (x, dim) in enumerate(zip(inputs, in_dims, strict=True))
    ]


def _one_by_one(
    function: Callable[..., tuple[Tensor, ...]], info: Any, in_dims: Any, inputs: Any
) -> tuple[Tensor, ...]:
    """The results for each example, stacked."""

    def example(i: int) -> list[Any]:
        return [
            x if dim is None else x.select(dim, i) for x, dim in zip(inputs, in_dims, strict=True)
        ]

    if info.batch_size == 0:
        raise UsageError("vmap over no examples: segfuse needs at least one")
    results = [function(*example(i)) for i in range(info.batch_size)]
    return tuple(torch.stack(parts) for parts in zip(*results, strict=True))
