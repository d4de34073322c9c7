"""The engine as opaque operations of PyTorch, with fake implementations and autograd.

Each operation takes the same `_Model`. The value of a row is its loss where gold is given, its
partial loss where `partial` is set, and its log-partition otherwise. Ten gradients go with the
ten kinds of scores; one that is not needed has no elements. A direction is ten tensors in the
shapes of the scores, or None for 0. With the value v_b of row b, its gradient g_b, its Hessian H_b:

    rows                                v_b
    gradients(w)                        sum_b w_b g_b
    weighted(w)                         sum_b w_b v_b and gradients(w)
    derivative(along)                   <g_b, along>
    hessian_product(w, along)           sum_b w_b H_b along
    curvature(along, other)             <other, H_b along>

They are each other's derivatives: `along` and `other` enter linearly. The rules below take the
operations from a namespace, so that functions of autograd can have the same (`_autograd`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import _native
from .._errors import UsageError
from ..crf._call import SCORES, TABLES, Call, gold_of
from ..crf._constraints import Constraints, native_tail, whole_scope
from ..crf._segmentations import Segmentations

DIFFERENTIABLE = (*SCORES, *TABLES, "tail")
N = len(DIFFERENTIABLE)
PER_ROW = ("emission", "start", "end", "segment_scores")

_INPUTS = (
    "Tensor emission, Tensor transition, Tensor duration, Tensor? initial, Tensor? final, "
    "Tensor? start, Tensor? end, Tensor? segment_scores, Tensor? transition_scores, "
    "Tensor? tail, Tensor? lengths, Tensor? labels, "
    "Tensor? row_pointer, Tensor? segment_start, Tensor? segment_duration, Tensor? segment_label, "
    "Tensor? allowed, Tensor? transitions, Tensor? min_duration, Tensor? max_duration, "
    "Tensor? known_labels, Tensor? boundaries, int ignore, bool split, bool partial"
)
NAMES = tuple(entry.rpartition(" ")[2] for entry in _INPUTS.split(", "))
"""What messages call the inputs."""
TENSORS, _NUMBERS = 22, 3
INPUTS = TENSORS + _NUMBERS
ROW_INPUTS = tuple(
    NAMES.index(name)
    for name in (*PER_ROW, "lengths", "labels", "allowed", "known_labels", "boundaries")
)
"""The inputs with an axis of rows; transition_scores may have one or not."""
BY_TIME = NAMES.index("transition_scores")
SEGMENTS = slice(NAMES.index("row_pointer"), NAMES.index("allowed"))
KNOWN = slice(NAMES.index("allowed"), TENSORS)
OF_ROWS = sum(1 << i for i, name in enumerate(DIFFERENTIABLE) if name in PER_ROW)
"""The bits of scores that have an axis of rows."""
_GRADIENTS = ", ".join(["Tensor"] * len(DIFFERENTIABLE))

_ALONG, _OTHER = (
    ", ".join(f"Tensor? {kind}_{name}" for name in DIFFERENTIABLE) for kind in ("along", "other")
)

NO_THIRD_DERIVATIVE = (
    "segfuse computes first and second derivatives only: a second derivative of the semi-Markov "
    "CRF cannot be differentiated again by the scores"
)
NO_SECOND_OF_TABLES = (
    "models with segment_scores or transition_scores have first derivatives in reverse mode only: "
    "no forward mode and no second derivatives"
)


class _Model:
    """What every operation gets, in the order of `_INPUTS`."""

    def __init__(self, *inputs: Any) -> None:
        self.inputs = inputs
        self.scores: tuple[Tensor | None, ...] = inputs[: N - 1]
        self.emission: Tensor = inputs[0]
        self.tail, self.lengths, self.labels = inputs[N - 1 : N + 2]
        self.segments = inputs[SEGMENTS]
        known = inputs[KNOWN]
        self.constraints = None if all(x is None for x in known) else Constraints(*known)
        self.ignore, self.split, self.partial = inputs[TENSORS:]

    def need_no_tables(self) -> None:
        if any(x is not None for x in self.scores[len(SCORES) :]):
            raise UsageError(NO_SECOND_OF_TABLES)

    def run(self, gradients: tuple[Any, ...] | None, weights: Tensor | None) -> Tensor:
        """The value of each row; writes the gradients of their weighted sum."""
        gold, lengths = None, self.lengths
        if self.labels is not None or self.segments[0] is not None:
            gold, lengths = self._gold()
        call = Call(self.scores, lengths)
        value = call.per_row()
        by_scores = by_tail = tail_gradient = None
        if gradients is not None:
            by_scores, tail_gradient = gradients[: N - 1], gradients[N - 1]
            by_tail = None if tail_gradient is None else call.like_tail(self.tail)
        arrays = (value, by_scores, by_tail, weights)
        call.evaluate(gold, self.partial, self.constraints, self.tail, *arrays)
        if tail_gradient is not None:
            tail_gradient.copy_(by_tail)
        return value

    def along(
        self,
        direction: Sequence[Tensor | None],
        *,
        other: Sequence[Tensor | None] | None = None,
        curvature: Tensor | None = None,
        product: tuple[Tensor | None, ...] | None = None,
        weights: Tensor | None = None,
    ) -> None:
        """Writes the requested outputs; see `_native.derivatives_along`, which knows no tables."""
        self.need_no_tables()
        if not self.emission.is_cpu:
            raise UsageError(
                f"emission is on {self.emission.device}, where the semi-Markov CRF has no second "
                "derivatives; move the scores to the CPU"
            )
        gold, lengths = None, self.lengths
        if self.labels is not None or self.segments[0] is not None:
            gold, lengths = self._gold()
        call = Call(self.scores, lengths)
        if gold is None:
            scope = whole_scope(self.constraints, self.tail)
        else:  # all labels and boundaries are known
            scope = _native.Scope(call.problem, gold, native_tail(self.tail))
        by_tail = None if product is None or product[-1] is None else call.like_tail(self.tail)
        _native.derivatives_along(
            call.problem,
            scope,
            self.partial or gold is not None,
            self._arrays_of(direction),
            None if other is None else self._arrays_of(other),
            None,
            curvature,
            None if product is None else product[: N - 1],
            by_tail,
            weights,
        )
        if product is not None and product[-1] is not None:
            product[-1].copy_(by_tail)

    def _arrays_of(self, direction: Sequence[Tensor | None]) -> tuple[Any, ...]:
        """In the dtypes that the engine takes."""
        known = (*direction[: len(SCORES)], direction[-1])
        dtypes = [self.emission.dtype] * len(SCORES) + [torch.float64]
        return tuple(
            None if x is None else x.to(dtype) for x, dtype in zip(known, dtypes, strict=True)
        )

    def row(self, row: int) -> _Model:
        """The model of that row alone."""
        found = list(self.inputs)
        for i in ROW_INPUTS:
            if found[i] is not None:
                found[i] = found[i][row : row + 1]
        if found[SEGMENTS.start] is not None:
            pointer, *columns = found[SEGMENTS]
            first, last = int(pointer[row]), int(pointer[row + 1])
            found[SEGMENTS] = [pointer[row : row + 2] - first, *(x[first:last] for x in columns)]
        return _Model(*found)

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


def _wanted(gradients: Sequence[Tensor | None], needed: int) -> tuple[Tensor | None, ...]:
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
            of_rows = name in PER_ROW or (name == TABLES[1] and len(gradient.shape) == 4)
            if of_rows and len(gradient) == len(finite):
                reached = ~finite.reshape(-1, *[1] * (gradient.dim() - 1))
            else:
                reached = ~finite.all()
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


def _derivative(*inputs: Any) -> Tensor:
    """By the gradients, which the engine's fast passes give, on any device."""
    model, direction = _Model(*inputs[:INPUTS]), inputs[INPUTS:]
    model.need_no_tables()
    values = model.values()
    needed = sum(1 << i for i, x in enumerate(direction) if x is not None)
    ones = torch.ones_like(values)
    if needed & ~OF_ROWS == 0:
        return values.copy_(_dots(_gradients(ones, *model.inputs, needed), direction, 1))
    # The gradients by scores that rows share come as sums over rows, so each row goes by itself.
    for row in range(len(values)):
        own = [
            None if x is None else x[row : row + 1] if name in PER_ROW else x
            for name, x in zip(DIFFERENTIABLE, direction, strict=True)
        ]
        gradients = _gradients(ones[row : row + 1], *model.row(row).inputs, needed)
        values[row] = _dots(gradients, own, 0)
    return values


def _dots(gradients: Sequence[Tensor], direction: Sequence[Tensor | None], first: int) -> Tensor:
    """The sums of gradient * direction over the axes from `first` on. A score without influence has
    none either way: that of a direction that is not finite is left out."""
    terms = [
        torch.where(gradient == 0, 0.0, gradient.double() * along.double()).flatten(first).sum(-1)
        for gradient, along in zip(gradients, direction, strict=True)
        if along is not None
    ]
    return torch.stack(terms).sum(0)


def _derivative_fake(*inputs: Any) -> Tensor:
    return _Model(*inputs[:INPUTS]).values()


def _hessian_product(weights: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    model, direction, needed = _Model(*inputs[:INPUTS]), inputs[INPUTS:-1], inputs[-1]
    gradients = model.gradients(needed)
    finite = torch.isfinite(weights)
    finite_weights = torch.where(finite, weights, 0.0)
    model.along(direction, product=_wanted(gradients, needed), weights=finite_weights)
    if not bool(finite.all()):
        _poison(gradients, finite)
    return gradients


def _hessian_product_fake(weights: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    return _Model(*inputs[:INPUTS]).gradients(inputs[-1])


def _curvature(*inputs: Any) -> Tensor:
    model, directions = _Model(*inputs[:INPUTS]), inputs[INPUTS:]
    values = model.values()
    model.along(directions[:N], other=directions[N:], curvature=values)
    return values


# --- derivatives: what autograd keeps of a call, and what it makes of that


def save(ctx: Any, inputs: tuple[Any, ...], output: Any = None) -> None:
    """Keeps the inputs of a call."""
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*(x if isinstance(x, Tensor) else None for x in inputs))
    ctx.numbers = tuple(None if isinstance(x, Tensor) else x for x in inputs)


def saved(ctx: Any) -> tuple[Any, ...]:
    """The inputs of a call."""
    return _inputs_of(ctx, ctx.saved_tensors)


def _inputs_of(ctx: Any, tensors: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """The same from what `ctx.saved_tensors` gave, which checkpointing allows to read once."""
    kept = tensors[: len(ctx.numbers)]
    return tuple(n if x is None else x for x, n in zip(kept, ctx.numbers, strict=True))


def save_with_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """The same, and the gradients among the outputs of `weighted`."""
    save(ctx, inputs)
    ctx.save_for_backward(*(x if isinstance(x, Tensor) else None for x in inputs), *output[1:])


def _wish(chosen: Sequence[bool]) -> int:
    return sum(1 << i for i, need in enumerate(chosen) if need)


def _input_gradients(ctx: Any, first: int, gradients: dict[int, Any]) -> tuple[Any, ...]:
    """One entry for each input of a call; gradients[i] belong to the inputs from i on."""
    found: list[Any] = [None] * len(ctx.numbers)
    for at, values in gradients.items():
        found[first + at : first + at + len(values)] = values
    return tuple(found)


def rows_backward(ops: Any, ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
    needed = 0 if grad is None else _wish(ctx.needs_input_grad[:N])
    if needed == 0:
        return _input_gradients(ctx, 0, {})
    gradients = ops.gradients(grad, *saved(ctx), needed)
    return _input_gradients(ctx, 0, {0: _wanted(gradients, needed)})


def gradients_backward(ops: Any, ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    weights, *inputs, given = saved(ctx)
    along = _wanted(grads, given)
    found: dict[int, Any] = {}
    if any(x is not None for x in along):
        needed = _wish(ctx.needs_input_grad[1 : N + 1])
        if ctx.needs_input_grad[0]:
            found[-1] = (ops.derivative(*inputs, *along),)
        if needed:
            product = ops.hessian_product(weights, *inputs, *along, needed)
            found[0] = _wanted(product, needed)
    return _input_gradients(ctx, 1, found)


def weighted_backward(
    ops: Any, ctx: Any, grad: Tensor | None, *grads: Tensor | None
) -> tuple[Any, ...]:
    tensors = ctx.saved_tensors
    weights, *inputs, given = _inputs_of(ctx, tensors)
    gradients = tensors[len(ctx.numbers) :]
    found: list[Tensor | None] = [None] * N
    if grad is not None:
        found = [
            None if gradient is None else gradient * grad.to(gradient.dtype)
            for gradient in _wanted(gradients, given)
        ]
    along = _wanted(grads, given)
    needed = _wish(ctx.needs_input_grad[1 : N + 1])
    if needed and any(x is not None for x in along):
        product = ops.hessian_product(weights, *inputs, *along, needed)
        found = [_sum(a, b) for a, b in zip(found, _wanted(product, needed), strict=True)]
    return _input_gradients(ctx, 1, {0: found})


def derivative_backward(ops: Any, ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
    kept = saved(ctx)
    inputs, along = kept[:INPUTS], kept[INPUTS:]
    found: dict[int, Any] = {}
    if grad is not None:
        needed = _wish(ctx.needs_input_grad[:N])
        if needed:
            found[0] = _wanted(ops.hessian_product(grad, *inputs, *along, needed), needed)
        needed = _wish(ctx.needs_input_grad[INPUTS:])
        if needed:
            found[INPUTS] = _wanted(ops.gradients(grad, *inputs, needed), needed)
    return _input_gradients(ctx, 0, found)


def refuse_third(scores: Sequence[Tensor | None], chosen: Sequence[bool]) -> Any:
    """What a rule calls for a third derivative by the chosen scores."""
    if any(chosen):
        raise RuntimeError(NO_THIRD_DERIVATIVE)
    return ()


def hessian_product_backward(
    ops: Any, ctx: Any, *grads: Tensor | None, third: Any = refuse_third
) -> tuple[Any, ...]:
    weights, *rest, given = saved(ctx)
    inputs, along = rest[:INPUTS], rest[INPUTS:]
    other = _wanted(grads, given)
    found: dict[int, Any] = {}
    if any(x is not None for x in other):
        found[0] = third(inputs[:N], ctx.needs_input_grad[1 : N + 1])
        if ctx.needs_input_grad[0]:
            found[-1] = (ops.curvature(*inputs, *along, *other),)
        needed = _wish(ctx.needs_input_grad[1 + INPUTS : 1 + INPUTS + N])
        if needed:
            product = ops.hessian_product(weights, *inputs, *other, needed)
            found[INPUTS] = _wanted(product, needed)
    return _input_gradients(ctx, 1, found)


def curvature_backward(
    ops: Any, ctx: Any, grad: Tensor | None, third: Any = refuse_third
) -> tuple[Any, ...]:
    kept = saved(ctx)
    inputs, along, other = kept[:INPUTS], kept[INPUTS : INPUTS + N], kept[INPUTS + N :]
    found: dict[int, Any] = {}
    if grad is not None:
        found[0] = third(inputs[:N], ctx.needs_input_grad[:N])
        for first, rest in ((INPUTS, other), (INPUTS + N, along)):
            needed = _wish(ctx.needs_input_grad[first : first + N])
            if needed:
                product = ops.hessian_product(grad, *inputs, *rest, needed)
                found[first] = _wanted(product, needed)
    return _input_gradients(ctx, 0, found)


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def _define(name: str, schema: str, run: Any, fake: Any, backward: Any, keep: Any = save) -> None:
    torch.library.define(f"segfuse::{name}", schema, tags=torch.Tag.pt2_compliant_tag)
    torch.library.impl(f"segfuse::{name}", "default", run)
    torch.library.register_fake(f"segfuse::{name}", fake)
    rule = functools.partial(backward, torch.ops.segfuse)
    torch.library.register_autograd(f"segfuse::{name}", rule, setup_context=keep)


_define("rows", f"({_INPUTS}) -> Tensor", _rows, _rows_fake, rows_backward)
_define(
    "gradients",
    f"(Tensor weights, {_INPUTS}, int needed) -> ({_GRADIENTS})",
    _gradients,
    _gradients_fake,
    gradients_backward,
)
_define(
    "weighted",
    f"(Tensor weights, {_INPUTS}, int needed) -> (Tensor, {_GRADIENTS})",
    _weighted,
    _weighted_fake,
    weighted_backward,
    save_with_gradients,
)
_define(
    "derivative",
    f"({_INPUTS}, {_ALONG}) -> Tensor",
    _derivative,
    _derivative_fake,
    derivative_backward,
)
_define(
    "hessian_product",
    f"(Tensor weights, {_INPUTS}, {_ALONG}, int needed) -> ({_GRADIENTS})",
    _hessian_product,
    _hessian_product_fake,
    hessian_product_backward,
)
_define(
    "curvature",
    f"({_INPUTS}, {_ALONG}, {_OTHER}) -> Tensor",
    _curvature,
    _derivative_fake,
    curvature_backward,
)
