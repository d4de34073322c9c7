"""The engine as opaque operations of PyTorch, with fake implementations and autograd.

Each operation takes the same `_Model`: scores, lengths and gold. Without gold the value of a row is its
log-partition, with gold its loss. Seven gradients go with the seven scores; one that is not needed
has no elements.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _arrays, _native
from .semicrf import SCORES, _Call, _gold

_INPUTS = (
    "Tensor emission, Tensor transition, Tensor duration, Tensor? initial, Tensor? final, "
    "Tensor? start, Tensor? end, Tensor? lengths, Tensor? labels, Tensor? row_pointer, "
    "Tensor? segment_start, Tensor? segment_duration, Tensor? segment_label, int ignore, bool split"
)
_SEVEN = ", ".join(["Tensor"] * 7)

_NO_SECOND_DERIVATIVE = (
    "segfuse computes first derivatives only: a gradient of the semi-Markov CRF cannot be "
    "differentiated again (create_graph=True, torch.autograd.functional.hessian)"
)


class _Model:
    """What every operation gets, in the order of `_INPUTS`."""

    def __init__(self, *inputs: Any) -> None:
        self.scores: tuple[Tensor | None, ...] = inputs[:7]
        self.emission: Tensor = inputs[0]
        self.lengths, self.labels = inputs[7:9]
        self.segments = inputs[9:13]
        self.ignore, self.split = inputs[13:]

    def run(self, gradients: tuple[Any, ...] | None, weights: Tensor | None) -> Tensor:
        """The value of each row; writes the gradients of their weighted sum."""
        gold, lengths = None, self.lengths
        if self.labels is not None or self.segments[0] is not None:
            gold, lengths = self._gold()
        call = _Call(self.scores, lengths, differentiable=False)
        value = call.per_row()
        if gold is None:
            _native.log_partition(call.problem, value, gradients, weights)
        else:
            _native.loss(call.problem, gold, value, None, None, gradients, weights)
        return value

    def _gold(self) -> tuple[_native.Segments, Any]:
        if self.labels is None:
            return _native.Segments(*self.segments), self.lengths
        long_runs = "split" if self.split else "error"
        return _gold(
            self.emission, self.scores[2], self.lengths, self.labels, None, self.ignore, long_runs
        )

    def gradients(self, needed: int) -> tuple[Tensor, ...]:
        return tuple(
            torch.empty_like(score, memory_format=torch.contiguous_format)
            if score is not None and needed >> i & 1
            else self.emission.new_empty(0)
            for i, score in enumerate(self.scores)
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
    *inputs, needed = inputs
    model = _Model(*inputs)
    gradients = model.gradients(needed)
    finite = torch.isfinite(weights)
    model.run(_wanted(gradients, needed), torch.where(finite, weights, 0.0))
    if not bool(finite.all()):
        _poison(gradients, finite)
    return gradients


def _poison(gradients: tuple[Tensor, ...], finite: Tensor) -> None:
    """NaN where a weight that is not finite reaches, so that a gradient scaler skips the step."""
    for name, gradient in zip(SCORES, gradients, strict=True):
        if gradient.numel() > 0:
            per_row = name in ("emission", "start", "end")
            gradient[~finite if per_row else ...] = torch.nan


def _gradients_fake(weights: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    *inputs, needed = inputs
    return _Model(*inputs).gradients(needed)


def _weighted(weights: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    *inputs, needed = inputs
    model = _Model(*inputs)
    gradients = model.gradients(needed)
    values = model.run(_wanted(gradients, needed), weights)
    return torch.dot(weights, values), *gradients


def _weighted_fake(weights: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    *inputs, needed = inputs
    model = _Model(*inputs)
    return weights.new_empty(()), *model.gradients(needed)


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:13])
    ctx.numbers = inputs[13:]


def _rows_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    needed = sum(1 << i for i, need in enumerate(ctx.needs_input_grad[:7]) if need)
    inputs = (*ctx.saved_tensors, *ctx.numbers)
    gradients = torch.ops.segfuse.gradients(grad, *inputs, needed)
    return *_wanted(gradients, needed), *[None] * 8


def _save_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[1:])
    ctx.needed = inputs[-1]


def _weighted_backward(ctx: Any, grad: Tensor | None, *grads: Tensor | None) -> tuple[Any, ...]:
    if any(other is not None for other in grads):
        raise RuntimeError(_NO_SECOND_DERIVATIVE)
    nothing = (None,) * 9
    if grad is None:
        return None, *[None] * 7, *nothing
    scaled = tuple(
        None if gradient is None else gradient * grad.to(gradient.dtype)
        for gradient in _wanted(ctx.saved_tensors, ctx.needed)
    )
    return None, *scaled, *nothing


def _refuse_second_derivative(ctx: Any, *grads: Tensor | None) -> Any:
    raise RuntimeError(_NO_SECOND_DERIVATIVE)


def _define(name: str, schema: str, run: Any, fake: Any) -> None:
    torch.library.define(f"segfuse::{name}", schema, tags=torch.Tag.pt2_compliant_tag)
    torch.library.impl(f"segfuse::{name}", "default", run)
    torch.library.register_fake(f"segfuse::{name}", fake)


_define("rows", f"({_INPUTS}) -> Tensor", _rows, _rows_fake)
_define(
    "gradients",
    f"(Tensor weights, {_INPUTS}, int needed) -> ({_SEVEN})",
    _gradients,
    _gradients_fake,
)
_define(
    "weighted",
    f"(Tensor weights, {_INPUTS}, int needed) -> (Tensor, {_SEVEN})",
    _weighted,
    _weighted_fake,
)
torch.library.register_autograd("segfuse::rows", _rows_backward, setup_context=_save_inputs)
torch.library.register_autograd("segfuse::gradients", _refuse_second_derivative)
torch.library.register_autograd(
    "segfuse::weighted", _weighted_backward, setup_context=_save_gradients
)
