"""Compiled functions under PyTorch's autograd: forward and backward are programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ._tree import Structure, unflatten

if TYPE_CHECKING:
    from ._compile import Compiled, _Bound


def run(compiled: Compiled, bound: _Bound, structure: Structure, leaves: Sequence[Any]) -> list[Any]:
    """The results of a call, flat; they have a history where tensors require gradients."""
    wanted = [
        i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    if not torch.is_grad_enabled():
        return bound.run(_detached(leaves, wanted))
    tensors = [leaves[i] for i in wanted]
    results = _Function.apply(compiled, bound, structure, leaves, wanted, *tensors)
    return list(results)


def _detached(leaves: Sequence[Any], wanted: Sequence[int]) -> list[Any]:
    found = list(leaves)
    for i in wanted:
        found[i] = found[i].detach()
    return found


class _Function(torch.autograd.Function):
    """The tensors are those that require gradients; all else is in the leaves."""

    @staticmethod
    def forward(
        ctx: Any,
        compiled: Compiled,
        bound: _Bound,
        structure: Structure,
        leaves: Sequence[Any],
        wanted: Sequence[int],
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        results = bound.run(_detached(leaves, wanted))
        ctx.compiled, ctx.structure, ctx.wanted = compiled, structure, wanted
        # PyTorch sees to it that saved tensors are as they were.
        ctx.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        ctx.others = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        ctx.save_for_backward(*(leaves[i] for i in ctx.places))
        ctx.mark_non_differentiable(*(x for x in results if not x.is_floating_point()))
        ctx.floats = [x.is_floating_point() for x in results]
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        leaves = list(ctx.others)
        for i, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
            leaves[i] = tensor
        by_result = [c for c, is_float in zip(cotangents, ctx.floats, strict=True) if is_float]
        gradients = ctx.compiled._backward(
            unflatten(ctx.structure, iter(leaves)), tuple(by_result), tuple(ctx.wanted)
        )
        return (None, None, None, None, None, *gradients)
