"""The engine as opaque operations of PyTorch, with fake implementations and autograd.

Each operation takes the same `_Model`. The value of a row is its loss where gold is given, its
partial loss where `partial` is set, and its log-partition otherwise. Eight gradients go with the
eight kinds of scores; one that is not needed has no elements.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _native
from ..crf._call import SCORES, Call, gold_of
from ..crf._constraints import Constraints
from ..crf._segmentations import Segmentations

DIFFERENTIABLE = (*SCORES, "tail")
PER_ROW = ("emission", "start", "end")

_INPUTS = (
    "Tensor emission, Tensor transition, Tensor duration, Tensor? initial, Tensor? final, "
    "Tensor? start, Tensor? end, Tensor? tail, Tensor? lengths, Tensor? labels, "
    "Tensor? row_pointer, Tensor? segment_start, Tensor? segment_duration, Tensor? segment_label, "
    "Tensor? allowed, Tensor? transitions, Tensor? min_duration, Tensor? max_duration, "
    "Tensor? known_labels, Tensor? boundaries, int ignore, bool split, bool partial"
)
NAMES = tuple(entry.rpartition(" ")[2] for entry in _INPUTS.split(", "))
"""What messages call the inputs."""
TENSORS, _NUMBERS = 20, 3
_GRADIENTS = ", ".join(["Tensor"] * len(DIFFERENTIABLE))

NO_SECOND_DERIVATIVE = (
    "segfuse computes first derivatives only: a gradient of the semi-Markov CRF cannot be "
    "differentiated again (create_graph=True, torch.func.hessian, jvp of grad)"
)


class _Model:
    """What every operation gets, in the order of `_INPUTS`."""

    def __init__(self, *inputs: Any) -> None:
        self.scores: tuple[Tensor | None, ...] = inputs[:7]
        self.emission: Tensor = inputs[0]
        self.tail, self.lengths, self.labels = inputs[7:10]
        self.segments = inputs[10:14]
        known = inputs[14:20]
        self.constraints = None if all(x is None for x in known) else Constraints(*known)
        self.ignore, self.split, self.partial = inputs[20:]

    def run(self, gradients: tuple[Any, ...] | None, weights: Tensor | None) -> Tensor:
        """The value of each row; writes the gradients of their weighted sum."""
        gold, lengths = None, self.lengths
        if self.labels is not None or self.segments[0] is not None:
            gold, lengths = self._gold()
        call = Call(self.scores, lengths)
        value = call.per_row()
        by_scores = by_tail = tail_gradient = None
        if gradients is not None:
            by_scores, tail_gradient = gradients[:7], gradients[7]
            by_tail = None if tail_gradient is None else call.like_tail(self.tail)
        arrays = (value, by_scores, by_tail, weights)
        call.evaluate(gold, self.partial, self.constraints, self.tail, *arrays)
        if tail_gradient is not None:
            tail_gradient.copy_(by_tail)
        return value

    def _gold(self) -> tuple[_native.Segments, Any]:
        segments = None if self.labels is not None else Segmentations(*self.segments)
        return gold_of(
            self.emission,
            self.scores[2],
            self.lengths,
            self.labels,
            segments,
            ignore=self.ignore,
            long_runs="split" if self.split else "error",
            tail=self.tail,
        )

    def gradients(self, needed: int) -> tuple[Tensor, ...]:
        return tuple(
            torch.empty_like(score, memory_format=torch.contiguous_format)
            if score is not None and needed >> i & 1
            else self.emission.new_empty(0)
            for i, score in enumerate((*self.scores, self.tail))
        )

    def values(self) -> Tensor:
        return self.emission.new_empty(self.emission.shape[0], dtype=torch.float64)


def _wanted(gradients: tuple[Tensor, ...], needed: int) -> tuple[Tensor | None, ...]:
    return tuple(gradient if needed >> i & 1 else None for i, gradient in enumerate(gradients))


def _rows(*inputs: Any) -> Tensor:
    return _Model(*inputs).run(None, None)


def _rows_fake(*inputs: Any) -> Tensor:
    return _Model(*inputs).values()


def _gradients(weights: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    model, needed = _Model(*inputs[:-1]), inputs[-1]
    gradients = model.gradients(needed)
    finite = torch.isfinite(weights)
    model.run(_wanted(gradients, needed), torch.where(finite, weights, 0.0))
    if weights.is_cuda or not bool(finite.all()):
        _poison(gradients, finite)
    return gradients


def _poison(gradients: tuple[Tensor, ...], finite: Tensor) -> None:
    """NaN where a weight that is not finite reaches, so that a gradient scaler skips the step."""
    for name, gradient in zip(DIFFERENTIABLE, gradients, strict=True):
        if gradient.numel() > 0:
            reached = ~finite[:, None, None] if name in PER_ROW else ~finite.all()
            gradient.masked_fill_(reached, torch.nan)


def _gradients_fake(weights: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    return _Model(*inputs[:-1]).gradients(inputs[-1])


def _weighted(weights: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    model, needed = _Model(*inputs[:-1]), inputs[-1]
    gradients = model.gradients(needed)
    values = model.run(_wanted(gradients, needed), weights)
    return torch.dot(weights, values), *gradients


def _weighted_fake(weights: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    model, needed = _Model(*inputs[:-1]), inputs[-1]
    return weights.new_empty(()), *model.gradients(needed)


def save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:TENSORS])
    ctx.numbers = inputs[TENSORS:]


def input_gradients(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """None for all inputs but the differentiable ones."""
    return *gradients, *[None] * (TENSORS + _NUMBERS - len(DIFFERENTIABLE))


def rows_backward(ctx: Any, grad: Tensor, gradients_of: Any = None) -> tuple[Any, ...]:
    """`gradients_of` computes the gradients; by default it is the operation."""
    chosen = ctx.needs_input_grad[: len(DIFFERENTIABLE)]
    needed = sum(1 << i for i, need in enumerate(chosen) if need)
    inputs = (*ctx.saved_tensors, *ctx.numbers)
    gradients = (gradients_of or torch.ops.segfuse.gradients)(grad, *inputs, needed)
    return input_gradients(_wanted(gradients, needed))


def save_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[1:])
    ctx.needed = inputs[-1]


def weighted_backward(ctx: Any, grad: Tensor | None, *grads: Tensor | None) -> tuple[Any, ...]:
    if any(other is not None for other in grads):
        raise RuntimeError(NO_SECOND_DERIVATIVE)
    scaled: tuple[Tensor | None, ...] = (None,) * len(DIFFERENTIABLE)
    if grad is not None:
        scaled = tuple(
            None if gradient is None else gradient * grad.to(gradient.dtype)
            for gradient in _wanted(ctx.saved_tensors, ctx.needed)
        )
    return None, *input_gradients(scaled), None


def _refuse_second_derivative(ctx: Any, *grads: Tensor | None) -> Any:
    raise RuntimeError(NO_SECOND_DERIVATIVE)


def _define(name: str, schema: str, run: Any, fake: Any) -> None:
    torch.library.define(f"segfuse::{name}", schema, tags=torch.Tag.pt2_compliant_tag)
    torch.library.impl(f"segfuse::{name}", "default", run)
    torch.library.register_fake(f"segfuse::{name}", fake)


_define("rows", f"({_INPUTS}) -> Tensor", _rows, _rows_fake)
_define(
    "gradients",
    f"(Tensor weights, {_INPUTS}, int needed) -> ({_GRADIENTS})",
    _gradients,
    _gradients_fake,
)
_define(
    "weighted",
    f"(Tensor weights, {_INPUTS}, int needed) -> (Tensor, {_GRADIENTS})",
    _weighted,
    _weighted_fake,
)
torch.library.register_autograd("segfuse::rows", rows_backward, setup_context=save_inputs)
torch.library.register_autograd("segfuse::gradients", _refuse_second_derivative)
torch.library.register_autograd(
    "segfuse::weighted", weighted_backward, setup_context=save_gradients
)
