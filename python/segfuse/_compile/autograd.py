"""Compiled functions under PyTorch's autograd and its transforms: all derivatives are programs."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._arrays import TORCH, kind_of
from .._errors import UsageError
from .bound import Bound, Outside
from .tree import Structure, unflatten

if TYPE_CHECKING:
    from torch import Tensor

    from .compiled import Compiled


def run(
    compiled: Compiled,
    bound: Bound,
    structure: Structure,
    leaves: Sequence[Any],
    outside: Outside,
) -> list[Any]:
    """The results of a call, flat; they have a history where tensors require gradients."""
    call = _Leaves(compiled, bound, structure, leaves, outside)
    return list(_function().apply(call, *(leaves[i] for i in call.places)))


class _Leaves:
    """The arguments of a call except PyTorch's tensors, which autograd has to see one by one, and
    the arrays from outside. Derivatives read all of it again, so arrays of NumPy are copied."""

    def __init__(
        self,
        compiled: Compiled,
        bound: Bound,
        structure: Structure,
        leaves: Sequence[Any],
        outside: Outside,
    ) -> None:
        self.compiled, self._bound, self._structure = compiled, bound, structure
        self.places = [i for i, leaf in enumerate(leaves) if kind_of(leaf) is TORCH]
        self._others = [None if kind_of(leaf) is TORCH else _kept(leaf) for leaf in leaves]
        self._shapes = [leaves[i].shape for i in self.places]
        self.outside = {id(x): (x, _kept(x)) for x in bound.trace.captured if id(x) not in outside}
        self.outside.update(outside)
        self.tensors = [x for _, x in self.outside.values() if kind_of(x) is TORCH]
        """Those from outside."""

    def arguments(self, tensors: Sequence[Tensor]) -> Any:
        return unflatten(self._structure, iter(self._with(tensors[: len(self.places)])))

    def run(self, tensors: Sequence[Tensor]) -> list[Any]:
        """With tensors of other shapes where `vmap` has taken them apart."""
        torch = sys.modules["torch"]
        if any(map(torch._C._functorch.is_legacy_batchedtensor, tensors)):
            return self._run_in_old_vmap(tensors)
        leaves = self._with([x.detach() for x in tensors])
        if [x.shape for x in tensors] == self._shapes:
            return self._bound.run(leaves, self.outside)
        args, kwargs = unflatten(self._structure, iter(leaves))
        return self.compiled._bound_for(args, kwargs).run(leaves, self.outside)

    def _run_in_old_vmap(self, tensors: Sequence[Tensor]) -> list[Any]:
        """One example after the other, where `torch.autograd.grad(is_grads_batched=True)` and
        `torch.autograd.functional` batch without asking."""
        torch = sys.modules["torch"]
        level = torch._C._vmapmode_increment_nesting() - 1
        torch._C._vmapmode_decrement_nesting()
        while True:
            # A tensor without a batch at this level gets an axis of the given length, here 1.
            whole = [torch._remove_batch_dim(x, level, 1, 0) for x in tensors]
            others = [torch._remove_batch_dim(x, level, 2, 0) for x in tensors]
            sizes = {x.shape[0] for x, y in zip(whole, others, strict=True) if x.shape == y.shape}
            if sizes:
                break
            level -= 1
        (size,) = sizes
        _need_examples(size)
        each = [x.expand(size, *x.shape[1:]).unbind() for x in whole]
        results = [self.run(one) for one in zip(*each, strict=True)]
        return [
            torch._add_batch_dim(torch.stack(part), 0, level) for part in zip(*results, strict=True)
        ]

    def _with(self, tensors: Sequence[Tensor]) -> list[Any]:
        leaves = list(self._others)
        for i, tensor in zip(self.places, tensors, strict=True):
            leaves[i] = tensor
        return leaves


def _kept(leaf: Any) -> Any:
    """What others cannot change: PyTorch looks after its tensors itself."""
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def _need_examples(count: int) -> None:
    if count == 0:
        raise UsageError("vmap over no examples: segfuse needs at least one")


@functools.cache
def _function() -> Any:
    """The class that PyTorch's autograd knows compiled functions by, made at its first use."""
    import torch

    class CompiledFunction(torch.autograd.Function):
        @staticmethod
        def forward(call: _Leaves, *tensors: Tensor) -> tuple[Tensor, ...]:
            return tuple(call.run(tensors))

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            ctx.call = inputs[0]
            # PyTorch ensures that saved tensors are unchanged.
            ctx.save_for_backward(*inputs[1:], *inputs[0].tensors)
            ctx.save_for_forward(*inputs[1:])
            ctx.mark_non_differentiable(*(x for x in output if not x.is_floating_point()))
            ctx.floats = [x.is_floating_point() for x in output]

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> Any:
            by_result = [c for c, is_float in zip(cotangents, ctx.floats, strict=True) if is_float]
            chosen = [i for i, need in enumerate(ctx.needs_input_grad[1:]) if need]
            wanted = tuple(ctx.call.places[i] for i in chosen)
            saved = ctx.saved_tensors  # checkpointing allows one read
            arguments = ctx.call.arguments(saved)
            backward = ctx.call.compiled._backward
            found = backward.again((arguments, tuple(by_result), wanted), ctx.call.outside)
            gradients: list[Any] = [None] * len(ctx.needs_input_grad)
            for i, gradient in zip(chosen, found, strict=True):
                gradients[i + 1] = gradient
            return tuple(gradients)

        @staticmethod
        def jvp(ctx: Any, _: Any, *tangents: Tensor | None) -> Any:
            chosen = [i for i, tangent in enumerate(tangents) if tangent is not None]
            wanted = tuple(ctx.call.places[i] for i in chosen)
            along = tuple(tangents[i] for i in chosen)
            arguments = ctx.call.arguments(ctx.saved_tensors)
            forward = ctx.call.compiled._forward
            found = iter(forward.again((arguments, along, wanted), ctx.call.outside))
            return tuple(next(found) if is_float else None for is_float in ctx.floats)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[Any, ...], call: _Leaves, *tensors: Tensor) -> Any:
            """One example after the other."""
            _need_examples(info.batch_size)
            results = []
            for i in range(info.batch_size):
                one = [
                    x if dim is None else x.select(dim, i)
                    for x, dim in zip(tensors, in_dims[1:], strict=True)
                ]
                results.append(CompiledFunction.apply(call, *one))
            parts = tuple(torch.stack(part) for part in zip(*results, strict=True))
            return parts, (0,) * len(parts)

    return CompiledFunction
