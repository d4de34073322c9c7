"""What the calls of the engine share."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _arrays, _native
from ._constraints import native_tail
from ._errors import UsageError
from ._segmentations import native_from_labels, native_of

SCORES = ("emission", "transition", "duration", "initial", "final", "start", "end")
"""The scores of a model, in the order in which tuples of arrays hold them."""


class Call:
    """The inputs of one call, checked, and the arrays that it writes."""

    def __init__(
        self, inputs: tuple[Any, ...], lengths: Any, *, differentiable: bool = False
    ) -> None:
        self.scores = tuple(
            _arrays.readable(name, array, differentiable=differentiable)
            for name, array in zip(SCORES, inputs, strict=True)
        )
        self.emission = self.scores[0]
        self.kind = _arrays.kind_of(self.emission)
        self.problem = _native.Problem(*self.scores, _arrays.integers("lengths", lengths))

    def per_row(self) -> Any:
        return self.empty((self.problem.batch,), "float64")

    def empty(self, shape: tuple[int, ...], dtype: str | None = None) -> Any:
        return self.kind.empty(shape, dtype or self.problem.dtype, self.emission)

    def gradients(self) -> tuple[Any, ...]:
        return tuple(
            None if array is None else self.empty(tuple(array.shape)) for array in self.scores
        )

    def like_tail(self, tail: Any) -> Any:
        """The work array of a gradient by the tail; None without one."""
        return None if tail is None else self.empty(tuple(np.shape(tail)), "float64")

    def loss(
        self,
        gold: _native.Segments,
        value: Any,
        gradients: tuple[Any, ...] | None = None,
        weights: Any = None,
        *,
        tail: Any = None,
        tail_gradient: Any = None,
    ) -> None:
        """-log p(gold); with a tail it is the loss of all labels and boundaries being known."""
        if tail is None:
            _native.loss(self.problem, gold, value, None, None, gradients, weights)
            return
        scope = _native.Scope(self.problem, gold, native_tail(tail))
        _native.partial_loss(self.problem, scope, value, gradients, tail_gradient, weights)

    def weights(self, weights: Any) -> Any:
        return None if weights is None else np.asarray(weights, dtype=np.float64)

    def result(self, array: Any) -> Any:
        return None if array is None else self.kind.result(array)

    def results(self, arrays: tuple[Any, ...]) -> Any:
        return map(self.result, arrays)


def gold_of(
    emission: Any,
    duration: Any,
    lengths: Any,
    labels: Any,
    segments: Any,
    *,
    ignore: int,
    long_runs: str,
    tail: Any = None,
) -> tuple[_native.Segments, Any]:
    """The gold segmentations, and the lengths of the rows as far as they are known."""
    if (labels is None) == (segments is None):
        raise UsageError("expected either labels or segments, not both and not neither")
    if segments is not None:
        return native_of(segments), lengths
    frames, classes = tuple(np.shape(emission)), tuple(np.shape(duration))
    labels = _arrays.integers("labels", labels)
    if len(frames) != 3 or len(classes) != 2:
        return native_of([]), lengths  # what the engine says about those is clearer
    if tuple(labels.shape) != frames[:2]:
        raise UsageError(f"labels has shape {tuple(labels.shape)}, expected (B, T) = {frames[:2]}")
    longest = classes[0] if tail is None else max(1, frames[1])
    native = native_from_labels(
        labels, lengths, longest, frames[2], ignore=ignore, long_runs=long_runs
    )
    return native, native.frames() if lengths is None else lengths
