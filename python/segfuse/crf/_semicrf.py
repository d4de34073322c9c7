"""The CRF as one value: the scores of a batch, with a method for each quantity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, NamedTuple

from .. import _native
from .._errors import UsageError
from .._numbers import seed_of, whole
from ._call import SCORES, TABLES, Call, gold_of
from ._constraints import Constraints, native_scope, whole_scope
from ._segmentations import (
    IGNORE,
    SegmentationLists,
    Segmentations,
    from_arrays,
    native_of,
)

Array = Any
"""A NumPy array, a JAX array or a PyTorch tensor."""


@dataclass(frozen=True, slots=True)
class Gradients:
    """Derivatives by each input, in its shape and dtype; None for an input that was not given.

    The derivative by `tail` is (C,) float64.
    """

    emission: Array
    transition: Array
    duration: Array
    initial: Array
    final: Array
    start: Array
    end: Array
    tail: Array = None
    segment_scores: Array = None
    transition_scores: Array = None


@dataclass(frozen=True, slots=True)
class Posteriors:
    """Probabilities under the model; frames after the end of a row have 0.

    Attributes:
        label: (B, T, C) P(frame t has label c).
        start: (B, T, C) P(a segment of label c starts at t).
        end: (B, T, C) P(frame t is the last frame of a segment of label c).
        boundary: (B, T) P(a segment starts at t); 1 at t = 0.
        duration: (B, K, C) [b, d - 1, c], the expected number of segments of label c with d frames;
            with a tail, the last row counts those of K frames and more.
        entropy: (B,) float64, the entropy of the distribution over segmentations, in nats.
        log_partition: (B,) float64.
    """

    label: Array
    start: Array
    end: Array
    boundary: Array
    duration: Array
    entropy: Array
    log_partition: Array


class Gold(NamedTuple):
    """Gold segmentations, and the lengths of the rows as far as they are known."""

    segments: _native.Segments
    lengths: Any


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SemiCRF:
    """A distribution over the segmentations of each row of a batch.

        crf = SemiCRF(emission, transition, duration, lengths=lengths)
        crf.log_partition(), crf.loss(labels), crf.viterbi(), crf.posteriors()

    The object refers to the arrays without copying them. It computes and checks nothing before a
    method is called. `segfuse.crf` defines the score. Methods return arrays of the library of
    `emission`.

    Args:
        emission: (B, T, C) float32 or float64, the score of each label at each frame. All other
            scores have the same dtype and are on the same device.
        transition: (C, C) [from, to]; or (K, C, C), whose slice d - 1 is for transitions into a
            segment of d frames. The first segment has no transition into it.
        duration: (K, C); row d - 1 has the scores of duration d. K is the length of the longest
            segment in frames. A table of shape (C, K) cannot be detected if C equals K.
        initial: (C,) score of the first segment's label; 0 if absent.
        final: (C,) score of the last segment's label; 0 if absent.
        start: (B, T, C) score of a segment's first frame; 0 if absent.
        end: (B, T, C) score of a segment's last frame; 0 if absent.
        lengths: (B,) int32 or int64, the number of frames of each row, 0 <= length <= T; T if
            absent. Frames after the end of a row are never read.
        constraints: restricts sums and decoding to the segmentations that fulfil the constraints.
            log_partition with constraints minus log_partition without them is the log-probability
            that they hold.
        tail: (C,) allows segments of more than K frames. A segment of label c with d > K frames has
            the duration score of K frames plus (d - K) tail[c]. Without a tail, no segment is
            longer than K.
        segment_scores: (B, T, K, C), [b, t, d - 1, c] is added for a segment of label c that starts
            at t and has d frames; 0 if absent. Entries of segments that would extend beyond the end
            of a row are never read.
        transition_scores: (T, C, C) for all rows, or (B, T, C, C), [.., t, i, j] is added to the
            transition from i to j where a segment of label j starts at t > 0; 0 if absent.

    Constraints and a tail make a call slower by a small factor. Some methods do not support them;
    their docstrings say so.

    Raises (every method):
        UsageError: a shape, dtype or device is wrong, or a length is outside [0, T].
        DataError: a score inside a row is NaN or +inf; the message names batch, time and class.
    """

    emission: Array
    transition: Array
    duration: Array
    _: KW_ONLY
    initial: Array | None = None
    final: Array | None = None
    start: Array | None = None
    end: Array | None = None
    lengths: Array | None = None
    constraints: Constraints | None = None
    tail: Array | None = None
    segment_scores: Array | None = None
    transition_scores: Array | None = None

    def __repr__(self) -> str:
        given = [(f.name, getattr(self, f.name)) for f in fields(self)]
        shapes = [f"{name} {tuple(x.shape)}" for name, x in given if hasattr(x, "shape")]
        return f"{type(self).__name__}({', '.join(shapes)})"

    def log_partition(self) -> Array:
        """The log of the sum of exp(score) over all segmentations, (B,) float64; -inf for a row
        without a possible segmentation."""
        return self._value()

    def log_partition_and_gradients(
        self, *, weights: Array | None = None
    ) -> tuple[Array, Gradients]:
        """The log-partition, and the derivatives of sum_b weights[b] * log_partition[b].

        The derivative by a score is the expected number of times that a segmentation uses it. The
        derivatives by transition, duration, initial and final are sums over the rows.

        Args:
            weights: (B,) finite numbers; 1 if absent.
        """
        return self._value_and_gradients(weights)

    def partial_loss(self) -> Array:
        """-log P(the constraints hold), (B,) float64: the loss for partial labels.

        If all labels and boundaries of a row are known, it is -log p(gold). It is +inf for a row
        with no possible segmentation that fulfils the constraints.
        """
        return self._value(partial=True)

    def partial_loss_and_gradients(
        self, *, weights: Array | None = None
    ) -> tuple[Array, Gradients]:
        """The partial loss, and the derivatives of sum_b weights[b] * partial_loss[b]: the expected
        counts of the uses of scores, minus these counts given the constraints.

        Args:
            weights: (B,) finite numbers; 1 if absent.
        """
        return self._value_and_gradients(weights, partial=True)

    def loss(
        self,
        labels: Array | None = None,
        *,
        segments: Segmentations | Any = None,
        ignore: int = IGNORE,
        long_runs: str = "error",
    ) -> Array:
        """-log p(gold segmentation), (B,) float64: log_partition - score, never negative; +inf for
        a row whose gold segmentation has score -inf. Does not support constraints.

        Args:
            labels: (B, T) int32 or int64, the gold label of each frame; a segment is a maximal run
                of equal labels. Without `lengths`, a row ends at its first `ignore`.
            segments: the gold segmentations, in place of `labels`: `Segmentations`, or a list of
                (start, duration, label) for each row. The segments of a row cover [0, length)
                without gaps.
            ignore: the label of padding.
            long_runs: what to do with a run of labels longer than K: ``"error"``, or ``"split"``,
                which divides it into as few segments as possible. With a tail, no run is too long;
                with K = 1, every frame is a segment.

        Raises:
            UsageError: as above, or `labels` has a wrong shape or dtype.
            DataError: as above, or a label is outside [0, C), a gold segment is longer than K, or
                the segments of a row leave gaps or overlap.
        """
        self._need_none("loss", "constraints")
        return self._value(self._gold(labels, segments, ignore, long_runs))

    def loss_and_gradients(
        self,
        labels: Array | None = None,
        *,
        segments: Segmentations | Any = None,
        weights: Array | None = None,
        ignore: int = IGNORE,
        long_runs: str = "error",
    ) -> tuple[Array, Gradients]:
        """The loss, and the derivatives of sum_b weights[b] * loss[b], where rows with an infinite
        loss contribute nothing.

        Args:
            labels, segments, ignore, long_runs: see `loss`.
            weights: (B,) finite numbers; 1 if absent.
        """
        self._need_none("loss_and_gradients", "constraints")
        return self._value_and_gradients(weights, self._gold(labels, segments, ignore, long_runs))

    def score(
        self,
        labels: Array | None = None,
        *,
        segments: Segmentations | Any = None,
        ignore: int = IGNORE,
        long_runs: str = "error",
    ) -> Array:
        """The score of one segmentation for each row, (B,) float64, not normalised. Does not
        support constraints and tails.

        Args:
            labels, segments, ignore, long_runs: see `loss`.
        """
        self._need_none("score", "constraints", "tail")
        gold = self._gold(labels, segments, ignore, long_runs)
        call = self._call(gold, differentiable=True)
        value = call.per_row()
        _native.score(call.problem, gold.segments, value)
        return call.result(value)

    def segment_posteriors(self, segments: Segmentations | Any) -> Array:
        """P(the segmentation contains the segment) for each listed segment, (n,) float64, row by
        row. Does not support constraints and tails.

        Args:
            segments: `Segmentations`, or a list of (start, duration, label) for each row. The
                segments may leave gaps and overlap.

        Raises:
            UsageError, DataError: as above, or a segment is outside its row, is longer than K, or
                has a label outside [0, C).
        """
        self._need_none("segment_posteriors", "constraints", "tail")
        packed = native_of(segments)
        call = self._call(differentiable=True)
        probability = call.empty((packed.num_segments,), "float64")
        _native.segment_posteriors(call.problem, packed, probability)
        return call.result(probability)

    def posteriors(self) -> Posteriors:
        """Probabilities of labels, boundaries and durations, and the entropy; 0 for a row without
        a possible segmentation. On a GPU, `duration` and `entropy` are None."""
        call = self._call(differentiable=True)
        p = call.problem
        arrays = (
            *(call.empty((p.batch, p.frames, p.classes)) for _ in range(3)),
            call.empty((p.batch, p.frames)),
            None if call.on_cuda else call.empty((p.batch, p.max_duration, p.classes)),
            None if call.on_cuda else call.per_row(),
            call.per_row(),
        )
        _native.posteriors(p, native_scope(self.constraints, self.tail), *arrays)
        return Posteriors(*call.results(arrays))

    def entropy(self) -> Array:
        """The entropy of the distribution over segmentations in nats, (B,) float64; 0 for a row
        without a possible segmentation."""
        call = self._call(differentiable=True)
        value = call.per_row()
        scope = native_scope(self.constraints, self.tail)
        _native.posteriors(call.problem, scope, None, None, None, None, None, value, None)
        return call.result(value)

    def boundary_within(self, tolerance: int) -> Array:
        """P(at least one segment starts within `tolerance` frames of t), (B, T) in the dtype of the
        scores; 0 in padding.

        This is not the sum of the boundary posteriors of the window, because several segments may
        start in it.

        Args:
            tolerance: frames on either side, 0 or more.
        """
        call = self._call(differentiable=True)
        probability = call.empty((call.problem.batch, call.problem.frames))
        tolerance = whole("tolerance", tolerance)
        _native.boundary_within(call.problem, self._scope(), tolerance, probability)
        return call.result(probability)

    def expected_durations(self) -> Array:
        """The expected number of segments of each duration and label, summed over all rows: (K, C)
        in the dtype of the scores. With a tail, the last row counts those of K frames and more."""
        call = self._call(differentiable=True)
        counts = call.empty((call.problem.max_duration, call.problem.classes))
        _native.expected_durations(call.problem, self._scope(), counts)
        return call.result(counts)

    def cross_entropy(self, other: SemiCRF) -> Array:
        """-E[log p(segmentation) under `other`] in nats, (B,) float64, where the expectation is
        over segmentations of this model; +inf for a row with a segmentation that this model allows
        and `other` forbids.

        Does not support constraints, tails, segment_scores and transition_scores. Both models need
        the same shapes of emission, transition and duration, and the same lengths.
        """
        return self._compared("cross_entropy", _native.cross_entropy, other)

    def kl(self, other: SemiCRF) -> Array:
        """The Kullback-Leibler divergence E[log p - log p under `other`] in nats, (B,) float64,
        never negative. It is infinite where `cross_entropy` is, and needs the same models."""
        return self._compared("kl", _native.kl, other)

    def viterbi(self) -> Segmentations:
        """The best segmentation of each row, with its score. A row without a possible segmentation
        is empty, and its score is -inf.

        Among equally good segmentations, the first difference seen from the end of the row decides:
        the segment with the smaller duration wins, then the one with the smaller label.
        """
        call = self._call()
        value = call.per_row()
        scope = native_scope(self.constraints, self.tail)
        if call.on_cuda and scope is None:
            return _viterbi_on_cuda(call, value)
        arrays = _native.viterbi(call.problem, scope, value)
        return self._segmentations(call, arrays, score=call.result(value))

    def k_best(self, n: int) -> SegmentationLists:
        """The n best segmentations of each row with their scores, best first; all of them if a row
        has fewer. Ties are broken as in `viterbi`.

        ``result[b][i]`` is the list of segments of the segmentation i of row b, counted from 0;
        ``result[b].score`` has the scores.

        Args:
            n: the number of segmentations, at least 1.
        """
        call = self._call()
        return self._lists(call, _native.k_best(call.problem, self._scope(), whole("n", n)))

    def sample(self, n: int, seed: int) -> SegmentationLists:
        """n independent segmentations of each row, drawn from the model, with their scores; none
        for a row without a possible segmentation.

        Draw i of row b depends only on the scores of the row, the seed, b and i.

        Args:
            n: the number of draws.
            seed: any non-negative integer below 2^64.
        """
        call = self._call()
        counts = whole("n", n, 0), seed_of(seed)
        return self._lists(call, _native.sample(call.problem, self._scope(), *counts))

    def max_marginal(self, *, ignore: int = IGNORE) -> Array:
        """The most probable label of each frame by itself, (B, T) int32. These labels have the
        smallest expected number of wrong frames.

        They may not belong to any possible segmentation. Of equally probable labels, the smallest
        is taken.

        Args:
            ignore: the label of padding, and of rows without a possible segmentation.
        """
        call = self._call()
        labels = call.empty((call.problem.batch, call.problem.frames), "int32")
        _native.max_marginal(call.problem, self._scope(), labels, whole("ignore", ignore))
        return call.result(labels)

    def minimum_risk(self, tolerance: int) -> tuple[Segmentations, Array]:
        """The possible segmentation with the best expected boundary F1, and this F1, (B,) float64.
        A row without a possible segmentation is empty, and its F1 is 0.

        The expected F1 is 2 E[found] / (segments + E[true segments]), where `found` is the number
        of true starts with a start within `tolerance` frames. Given the boundaries, the labels are
        those with the smallest expected number of wrong frames.

        Args:
            tolerance: frames on either side, 0 or more.
        """
        call = self._call()
        f1 = call.per_row()
        tolerance = whole("tolerance", tolerance)
        arrays = _native.minimum_risk(call.problem, self._scope(), tolerance, f1)
        return self._segmentations(call, arrays), call.result(f1)

    # --- what the methods share ---

    def _call(self, gold: Gold | None = None, *, differentiable: bool = False) -> Call:
        scores = (self.emission, self.transition, self.duration, self.initial, self.final)
        lengths = self.lengths if gold is None else gold.lengths
        tables = (self.segment_scores, self.transition_scores)
        inputs = (*scores, self.start, self.end, *tables)
        return Call(inputs, lengths, differentiable=differentiable)

    def _scope(self) -> _native.Scope:
        return whole_scope(self.constraints, self.tail)

    def _gold(self, labels: Any, segments: Any, ignore: int, long_runs: str) -> Gold:
        how: dict[str, Any] = {"ignore": ignore, "long_runs": long_runs, "tail": self.tail}
        return Gold(*gold_of(self.emission, self.duration, self.lengths, labels, segments, **how))

    def _value(self, gold: Gold | None = None, *, partial: bool = False) -> Array:
        call = self._call(gold, differentiable=True)
        value = call.per_row()
        segments = None if gold is None else gold.segments
        call.evaluate(segments, partial, self.constraints, self.tail, value)
        return call.result(value)

    def _value_and_gradients(
        self, weights: Any, gold: Gold | None = None, *, partial: bool = False
    ) -> tuple[Array, Gradients]:
        call = self._call(gold)
        value, gradients, by_tail = call.per_row(), call.gradients(), call.like_tail(self.tail)
        arrays = (value, gradients, by_tail, call.weights(weights))
        segments = None if gold is None else gold.segments
        call.evaluate(segments, partial, self.constraints, self.tail, *arrays)
        names = (*SCORES, *TABLES, "tail")
        found = dict(zip(names, call.results((*gradients, by_tail)), strict=True))
        return call.result(value), Gradients(**found)

    def _compared(self, name: str, native: Callable[..., None], other: SemiCRF) -> Array:
        if not isinstance(other, SemiCRF):
            raise UsageError(f"{name} of a {type(other).__name__}, expected a SemiCRF")
        calls = []
        for model in (self, other):
            model._need_none(name, "constraints", "tail", *TABLES)
            calls.append(model._call(differentiable=True))
        value = calls[0].per_row()
        native(calls[0].problem, calls[1].problem, value)
        return calls[0].result(value)

    def _need_none(self, name: str, *fields: str) -> None:
        for field in fields:
            if getattr(self, field) is not None:
                raise UsageError(
                    f"{name} is for models without {field}; take dataclasses.replace(crf, "
                    f"{field}=None)"
                )

    def _segmentations(self, call: Call, arrays: Any, score: Array = None) -> Segmentations:
        return from_arrays(arrays, like=self.emission, score=score, frames=call.problem.frames)

    def _lists(self, call: Call, arrays: tuple[Any, ...]) -> SegmentationLists:
        pointer, *packed, score = arrays
        return SegmentationLists(
            pointer, self._segmentations(call, packed, score=call.result(score))
        )


def _viterbi_on_cuda(call: Call, score: Any) -> Segmentations:
    p = call.problem
    pointer = call.empty((p.batch + 1,), "int64")
    start, duration, label = (call.empty((p.batch * p.frames,), "int32") for _ in range(3))
    _native.viterbi_on_device(p, pointer, start, duration, label, score)
    call.check()
    n = int(pointer[-1])
    return Segmentations(pointer, start[:n], duration[:n], label[:n], score=score, frames=p.frames)
