"""What the calls of the engine share."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _arrays, _native
from .._device import columns_on, packed_from_labels
from .._errors import UsageError
from .._numbers import need_plain
from ._constraints import Constraints, native_scope, native_tail, whole_scope
from ._segmentations import Segmentations, native_from_labels, native_of, split_of

SCORES = ("emission", "transition", "duration", "initial", "final", "start", "end")
"""The scores that every function takes, in the order in which tuples of arrays hold them."""
TABLES = ("segment_scores", "transition_scores")
"""Those that follow them."""


class Call:
    """The inputs of one call, checked, and the arrays that it writes."""

    def __init__(
        self, inputs: tuple[Any, ...], lengths: Any, *, differentiable: bool = False
    ) -> None:
        self.scores = tuple(
            _arrays.readable(name, array, differentiable=differentiable)
            for name, array in zip((*SCORES, *TABLES), inputs, strict=True)
        )
        self.emission = self.scores[0]
        _need_rows_of_durations(self.emission, self.scores[2])
        self.kind = _arrays.kind_of(self.emission)
        self.on_cuda = self.kind.on_cuda(self.emission)
        lengths = _arrays.integers("lengths", lengths)
        if self.on_cuda and lengths is not None:
            lengths = self.kind.moved(lengths, self.emission)
        self.stream = self.kind.stream(self.emission)
        self.problem = _native.Problem(*(*self.scores, lengths, self.stream[1]))

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

    def evaluate(
        self,
        gold: _native.Segments | None,
        partial: bool,
        constraints: Constraints | None,
        tail: Any,
        value: Any,
        gradients: tuple[Any, ...] | None = None,
        tail_gradient: Any = None,
        weights: Any = None,
    ) -> None:
        """Writes a number for each row, and the gradients of their weighted sum: the loss if
        gold is given, the partial loss if `partial`, the log-partition otherwise."""
        outputs = (gradients, tail_gradient, weights)
        if gold is not None and tail is None:
            _native.loss(self.problem, gold, value, None, None, gradients, weights)
        elif gold is not None:  # all labels and boundaries are known
            scope = _native.Scope(self.problem, gold, native_tail(tail))
            _native.partial_loss(self.problem, scope, value, *outputs)
        elif partial:
            _native.partial_loss(self.problem, whole_scope(constraints, tail), value, *outputs)
        else:
            _native.log_partition(self.problem, native_scope(constraints, tail), value, *outputs)

    def weights(self, weights: Any) -> Any:
        need_plain("weights", weights)
        if weights is None or not self.on_cuda:
            return None if weights is None else np.asarray(weights, dtype=np.float64)
        return self.kind.moved(weights, self.emission, "float64")

    def check(self) -> None:
        """Waits for the device, and raises what it found wrong in the numbers."""
        if self.on_cuda:
            _native.check_device(*self.stream)

    def result(self, array: Any) -> Any:
        """What the caller gets; waits for the device."""
        self.check()
        return None if array is None else self.kind.result(array)

    def results(self, arrays: tuple[Any, ...]) -> Any:
        self.check()
        return (None if array is None else self.kind.result(array) for array in arrays)


def _need_rows_of_durations(emission: Any, duration: Any) -> None:
    """A table that lies on its side is named here; the engine refuses all else."""
    frames, table = tuple(np.shape(emission)), tuple(np.shape(duration))
    if len(frames) == 3 and len(table) == 2 and table[1] != frames[2] == table[0]:
        raise UsageError(
            f"duration has shape {table}, expected (K, C) with C = {frames[2]}: row d - 1 is "
            "duration d; pass duration.T"
        )


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
    kind = _arrays.kind_of(emission)
    if segments is not None:
        return _native_segments(segments, emission, kind), lengths
    frames, classes = tuple(np.shape(emission)), tuple(np.shape(duration))
    labels = _arrays.integers("labels", labels)
    if len(frames) != 3 or len(classes) != 2:
        return native_of([]), lengths  # what the engine says about those is clearer
    if tuple(labels.shape) != frames[:2]:
        raise UsageError(f"labels has shape {tuple(labels.shape)}, expected (B, T) = {frames[:2]}")
    longest = classes[0] if tail is None else max(1, frames[1])
    if kind.on_cuda(emission):
        split = split_of(long_runs) or longest == 1
        labels = kind.moved(labels, emission)
        lengths = None if lengths is None else kind.moved(lengths, emission)
        packed, lengths = packed_from_labels(
            kind, labels, lengths, longest, frames[2], ignore=ignore, split=split
        )
        return _native.Segments(*packed), lengths
    native = native_from_labels(
        labels, lengths, longest, frames[2], ignore=ignore, long_runs=long_runs
    )
    return native, native.frames() if lengths is None else lengths


def _native_segments(segments: Any, emission: Any, kind: Any) -> _native.Segments:
    if not kind.on_cuda(emission):
        return native_of(segments)
    if not isinstance(segments, Segmentations):
        segments = Segmentations.from_rows(segments)
    columns = (segments.row_pointer, segments.start, segments.duration, segments.label)
    return _native.Segments(*columns_on(kind, columns, emission))
