"""The operations of `_ops` under PyTorch's autograd and its transforms (torch.func, forward mode).

Graphs (torch.compile, torch.export) hold the opaque operations, which have the same backward
passes. `vmap` goes over the rows of all examples at once where examples share the other scores, and
over the examples one by one where they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._errors import UsageError
from . import _ops as ops

_ROWS = tuple(i in ops.ROW_INPUTS for i in range(ops.INPUTS))
_ALONG = tuple(name in ops.PER_ROW for name in ops.DIFFERENTIABLE)


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


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ops.save(ctx, inputs)
    ctx.save_for_forward(*(x if isinstance(x, Tensor) else None for x in inputs))


class _Rows(torch.autograd.Function):
    setup_context = staticmethod(_save)

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        return torch.ops.segfuse.rows(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        return ops.rows_backward(_Functions, ctx, grad)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return _Functions.derivative(*ops.saved(ctx), *tangents[: ops.N])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        return _map_rows(_Functions.rows, _ROWS, info.batch_size, in_dims, inputs)


class _Gradients(torch.autograd.Function):
    setup_context = staticmethod(_save)

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        return torch.ops.segfuse.gradients(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        return ops.gradients_backward(_Functions, ctx, *grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:
        weights, *inputs, needed = ops.saved(ctx)
        terms = []
        if tangents[0] is not None:
            terms.append(_Functions.gradients(tangents[0], *inputs, needed))
        if any(x is not None for x in tangents[1 : ops.N + 1]):
            along = tangents[1 : ops.N + 1]
            terms.append(_Functions.hessian_product(weights, *inputs, *along, needed))
        return _added(terms)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], Any]:
        of_rows = (True, *_ROWS, False)
        return _map_gradients(_Functions.gradients, of_rows, info.batch_size, in_dims, inputs)


class _Weighted(torch.autograd.Function):
    """Its gradients are outputs, so one call of the engine does for value and backward pass."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        return torch.ops.segfuse.weighted(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _save(ctx, inputs, output)
        ops.save_with_gradients(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        return ops.weighted_backward(_Functions, ctx, *grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:
        weights, *inputs, needed = ops.saved(ctx)
        along = tangents[1 : ops.N + 1]
        value = torch.dot(weights, _Functions.derivative(*inputs, *along))
        return value, *_Functions.hessian_product(weights, *inputs, *along, needed)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], Any]:
        parts = _one_by_one(_Weighted.apply, info.batch_size, in_dims, inputs)
        return parts, (0,) * len(parts)


class _Derivative(torch.autograd.Function):
    setup_context = staticmethod(_save)

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        return torch.ops.segfuse.derivative(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        return ops.derivative_backward(_Functions, ctx, grad)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        kept = ops.saved(ctx)
        inputs, along = kept[: ops.INPUTS], kept[ops.INPUTS :]
        terms = []
        if any(x is not None for x in tangents[: ops.N]):
            terms.append((_Functions.curvature(*inputs, *along, *tangents[: ops.N]),))
        if any(x is not None for x in tangents[ops.INPUTS :]):
            terms.append((_Functions.derivative(*inputs, *tangents[ops.INPUTS :]),))
        return _added(terms)[0]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        of_rows = (*_ROWS, *_ALONG)
        return _map_rows(_Functions.derivative, of_rows, info.batch_size, in_dims, inputs)


class _HessianProduct(torch.autograd.Function):
    setup_context = staticmethod(_save)

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        return torch.ops.segfuse.hessian_product(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        return ops.hessian_product_backward(_Functions, ctx, *grads, third=_zeros)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:
        weights, *rest, needed = ops.saved(ctx)
        inputs, along = rest[: ops.INPUTS], rest[ops.INPUTS :]
        terms = []
        if tangents[0] is not None:
            terms.append(_Functions.hessian_product(tangents[0], *inputs, *along, needed))
        moved = tangents[1 + ops.INPUTS : -1]
        if any(x is not None for x in moved):
            terms.append(_Functions.hessian_product(weights, *inputs, *moved, needed))
        return _added(terms)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], Any]:
        of_rows = (True, *_ROWS, *_ALONG, False)
        return _map_gradients(_Functions.hessian_product, of_rows, info.batch_size, in_dims, inputs)


class _Curvature(torch.autograd.Function):
    setup_context = staticmethod(_save)

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        return torch.ops.segfuse.curvature(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        return ops.curvature_backward(_Functions, ctx, grad, third=_zeros)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        kept = ops.saved(ctx)
        split = (
            slice(ops.INPUTS),
            slice(ops.INPUTS, ops.INPUTS + ops.N),
            slice(ops.INPUTS + ops.N, None),
        )
        inputs, *directions = (kept[part] for part in split)
        terms = []
        for moved, rest in zip(
            (tangents[part] for part in split[1:]), reversed(directions), strict=True
        ):
            if any(x is not None for x in moved):
                terms.append((_Functions.curvature(*inputs, *moved, *rest),))
        return _added(terms)[0]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        of_rows = (*_ROWS, *_ALONG, *_ALONG)
        return _map_rows(_Functions.curvature, of_rows, info.batch_size, in_dims, inputs)


class _Last(torch.autograd.Function):
    """The same tensors, which have no derivative any more: a backward pass that needs one goes
    through here and is refused. Passes that need none of it, such as those by a direction alone,
    do not come here; `ctx.needs_input_grad` would not tell them apart."""

    @staticmethod
    def forward(*scores: Tensor | None) -> tuple[Tensor | None, ...]:
        return tuple(None if x is None else x.view_as(x) for x in scores)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        raise RuntimeError(ops.NO_THIRD_DERIVATIVE)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        raise RuntimeError(ops.NO_THIRD_DERIVATIVE)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *scores: Tensor | None) -> tuple[Any, Any]:
        return _Last.apply(*scores), in_dims


def _zeros(scores: Sequence[Tensor | None], chosen: Sequence[bool]) -> list[Tensor | None]:
    """What `_Last` gets, if anybody asks for it."""
    return [
        torch.zeros_like(x) if x is not None and need else None
        for x, need in zip(scores, chosen, strict=True)
    ]


class _Functions:
    """What the rules of `_ops` take the operations from in eager calls."""

    rows = _Rows.apply
    gradients = _Gradients.apply
    derivative = _Derivative.apply

    @staticmethod
    def hessian_product(weights: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
        return _HessianProduct.apply(weights, *_Last.apply(*inputs[: ops.N]), *inputs[ops.N :])

    @staticmethod
    def curvature(*inputs: Any) -> Tensor:
        return _Curvature.apply(*_Last.apply(*inputs[: ops.N]), *inputs[ops.N :])


def _added(terms: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...]:
    """The sums of the terms' parts."""
    total = tuple(terms[0])
    for term in terms[1:]:
        total = tuple(a + b for a, b in zip(total, term, strict=True))
    return total


# --- vmap


def _map_rows(
    function: Callable[..., Tensor],
    of_rows: Sequence[bool],
    size: int,
    in_dims: Sequence[Any],
    inputs: Sequence[Any],
) -> tuple[Tensor, int]:
    """vmap of what gives a number a row."""
    together = _as_more_rows(size, of_rows, inputs, in_dims, inputs)
    if together is not None:
        batch = together[0].shape[0] // size
        return function(*together).unflatten(0, (size, batch)), 0
    one = lambda *x: (function(*x),)  # noqa: E731
    return _one_by_one(one, size, in_dims, inputs)[0], 0


def _map_gradients(
    function: Callable[..., tuple[Tensor, ...]],
    of_rows: Sequence[bool],
    size: int,
    in_dims: Sequence[Any],
    inputs: Sequence[Any],
) -> tuple[tuple[Tensor, ...], Any]:
    """vmap of what gives gradients: weights come first, the wish last."""
    needed = inputs[-1]
    if needed & ~ops.OF_ROWS == 0:
        together = _as_more_rows(size, of_rows, inputs[1:], in_dims, inputs)
        if together is not None:
            sizes = (size, together[1].shape[0] // size)
            parts = tuple(
                x.unflatten(0, sizes) if needed >> i & 1 else x
                for i, x in enumerate(function(*together))
            )
            return parts, tuple(0 if needed >> i & 1 else None for i in range(len(parts)))
    parts = _one_by_one(function, size, in_dims, inputs)
    return parts, (0,) * len(parts)


def _leading(x: Tensor, dim: int | None, size: int) -> Tensor:
    """The tensor with the axis of the examples in front."""
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _as_more_rows(
    size: int, of_rows: Sequence[bool], model: Sequence[Any], in_dims: Any, inputs: Any
) -> list[Any] | None:
    """The rows of all examples as one batch; None where examples have other scores of their own, or
    the model what has no axis of rows that could be made longer."""
    alike = all(dim is None or own for dim, own in zip(in_dims, of_rows, strict=True))
    fixed = (model[ops.SEGMENTS.start], model[ops.BY_TIME])
    if size == 0 or not alike or any(x is not None for x in fixed):
        return None
    return [
        _leading(x, dim, size).flatten(0, 1) if own and x is not None else x
        for x, dim, own in zip(inputs, in_dims, of_rows, strict=True)
    ]


def _one_by_one(
    function: Callable[..., tuple[Tensor, ...]], size: int, in_dims: Any, inputs: Any
) -> tuple[Tensor, ...]:
    """The results for each example, stacked."""

    def example(i: int) -> list[Any]:
        return [
            x if dim is None else x.select(dim, i) for x, dim in zip(inputs, in_dims, strict=True)
        ]

    if size == 0:
        raise UsageError("vmap over no examples: segfuse needs at least one")
    results = [function(*example(i)) for i in range(size)]
    return tuple(torch.stack(parts) for parts in zip(*results, strict=True))
