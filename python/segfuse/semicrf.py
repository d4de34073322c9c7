"""The semi-Markov CRF on NumPy, JAX and PyTorch arrays.

A segmentation of a row of L frames is a list of segments (start s, duration d, label y) that tile
[0, L), with 1 <= d <= K and 0 <= y < C. Its score is

    initial[y_1] + final[y_n] + sum over i >= 2 of transition[y_{i-1}, y_i]
    + sum over i of (emission[s_i : s_i + d_i, y_i].sum() + duration[d_i - 1, y_i]
                     + start[s_i, y_i] + end[s_i + d_i - 1, y_i])

and its probability exp(score - log_partition). Scores are natural logarithms; -inf forbids.

All functions take the same inputs (see `log_partition`), read them in place whatever their strides,
and return arrays of the library that `emission` belongs to. Numbers per row are float64 (float32 in
JAX unless it is set to keep 64 bits); gradients and posteriors have the dtype of the inputs. The GIL
is released while the engine works, and results are the same bits for any number of threads.

PyTorch tensors may lie on a CUDA device: log_partition, loss, score, posteriors, viterbi and the
gradients work there, on the current stream, and wait for it to report errors (segfuse.torch does not
wait).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _arrays, _native
from ._call import Call, gold_of
from ._constraints import Constraints, native_scope
from ._numbers import seed_of, whole
from ._segmentations import IGNORE, Segmentations, from_arrays, native_of

Array = Any
"""A NumPy array, a JAX array or a PyTorch tensor."""


@dataclass(frozen=True, slots=True)
class Gradients:
    """Derivatives by each input, with its shape and dtype; None for an input that was not given.

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


@dataclass(frozen=True, slots=True)
class Posteriors:
    """Probabilities under the model; frames at or past a row's length hold 0.

    Attributes:
        label: (B, T, C) P(frame t has label c).
        start: (B, T, C) P(a segment of label c starts at t).
        end: (B, T, C) P(frame t is the last of a segment of label c).
        boundary: (B, T) P(some segment starts at t); 1 at t = 0.
        duration: (B, K, C) expected number of segments of k + 1 frames and label c; with a tail
            the last row counts those of K frames and more.
        entropy: (B,) float64, of the distribution over segmentations, in nats.
        log_partition: (B,) float64.
    """

    label: Array
    start: Array
    end: Array
    boundary: Array
    duration: Array
    entropy: Array
    log_partition: Array


def log_partition(
    emission: Array,
    transition: Array,
    duration: Array,
    *,
    initial: Array | None = None,
    final: Array | None = None,
    start: Array | None = None,
    end: Array | None = None,
    lengths: Array | None = None,
    constraints: Constraints | None = None,
    tail: Array | None = None,
) -> Array:
    """log of the sum of exp(score) over all segmentations, per row.

    Args:
        emission: (B, T, C) float32 or float64, the score of a frame under a label. All other scores
            have the same dtype and lie on the same device.
        transition: (C, C) [from, to], or (K, C, C) where slice d - 1 is for a new segment of d
            frames. The first segment has no transition into it.
        duration: (K, C), row d - 1 is duration d. K is the longest segment in frames. A table of
            (C, K) cannot be told from one of (K, C) where C equals K.
        initial: (C,) score of the first segment's label; 0 if absent.
        final: (C,) score of the last segment's label; 0 if absent.
        start: (B, T, C) score of a segment's first frame; 0 if absent.
        end: (B, T, C) score of a segment's last frame; 0 if absent.
        lengths: (B,) int32 or int64, frames of each row, 0 <= length <= T; T if absent. Frames at
            or past a row's length are never read, whatever they hold.
        constraints: sums over the segmentations that fulfil them only; log_partition with them less
            log_partition without is the log of the probability that they hold.
        tail: (C,) lets a segment of label c have d > K frames, at the score of K frames (emissions
            of all d) plus (d - K) tail[c]. Without it no segment is longer than K.

    Both make a call slower by a small factor.

    Returns:
        (B,) float64; -inf for a row without any possible segmentation.

    Raises:
        UsageError: a wrong shape, dtype or device, or a length outside [0, T].
        DataError: a NaN or +inf inside a row; the message has batch, time and class.
    """
    inputs = (emission, transition, duration, initial, final, start, end)
    call = Call(inputs, lengths, differentiable=True)
    value = call.per_row()
    scope = native_scope(constraints, tail)
    _native.log_partition(call.problem, scope, value, None, None, None)
    return call.result(value)


def log_partition_and_gradients(
    emission: Array,
    transition: Array,
    duration: Array,
    *,
    initial: Array | None = None,
    final: Array | None = None,
    start: Array | None = None,
    end: Array | None = None,
    lengths: Array | None = None,
    constraints: Constraints | None = None,
    tail: Array | None = None,
    weights: Array | None = None,
) -> tuple[Array, Gradients]:
    """The log-partition, and the derivatives of sum_b weights[b] * log_partition[b].

    The derivative by a score is the expected number of its uses in a segmentation.

    Args:
        emission, transition, duration, initial, final, start, end, lengths,
            constraints, tail: see `log_partition`.
        weights: (B,) finite numbers; 1 if absent.

    Returns:
        (B,) float64, and `Gradients`; those of transition, duration, initial and final are sums
        over the rows.

    Raises:
        UsageError, DataError: see `log_partition`.
    """
    inputs = (emission, transition, duration, initial, final, start, end)
    call = Call(inputs, lengths)
    value, gradients, by_tail = call.per_row(), call.gradients(), call.like_tail(tail)
    scope = native_scope(constraints, tail)
    weights = call.weights(weights)
    _native.log_partition(call.problem, scope, value, gradients, by_tail, weights)
    return call.result(value), Gradients(*call.results((*gradients, by_tail)))


def loss(
    emission: Array,
    transition: Array,
    duration: Array,
    *,
    labels: Array | None = None,
    segments: Segmentations | Any = None,
    initial: Array | None = None,
    final: Array | None = None,
    start: Array | None = None,
    end: Array | None = None,
    lengths: Array | None = None,
    tail: Array | None = None,
    ignore: int = IGNORE,
    long_runs: str = "error",
) -> Array:
    """-log p(gold segmentation) per row: log_partition - score, never negative.

    Args:
        emission, transition, duration, initial, final, start, end, lengths,
            tail: see `log_partition`.
        labels: (B, T) int32 or int64, gold labels per frame; a segment is a maximal run of equal
            labels. Without `lengths` a row ends at its first `ignore`.
        segments: the gold segmentations instead: `Segmentations`, or one list of
            (start, duration, label) a row. They tile [0, length) of their row.
        ignore: the label of padding.
        long_runs: for labels, what to do with a run longer than K: ``"error"``, or ``"split"`` into
            the fewest segments that fit. With a tail no run is too long, and with K = 1 every
            frame is a segment.

    Returns:
        (B,) float64; +inf for a row whose gold segmentation has score -inf.

    Raises:
        UsageError: see `log_partition`; also labels of a wrong shape or dtype.
        DataError: see `log_partition`; also a label outside [0, C), a gold segment longer than K,
            or segments that do not tile their row.
    """
    options: dict[str, Any] = {"ignore": ignore, "long_runs": long_runs, "tail": tail}
    gold, lengths = gold_of(emission, duration, lengths, labels, segments, **options)
    inputs = (emission, transition, duration, initial, final, start, end)
    call = Call(inputs, lengths, differentiable=True)
    value = call.per_row()
    call.loss(gold, value, tail=tail)
    return call.result(value)


def loss_and_gradients(
    emission: Array,
    transition: Array,
    duration: Array,
    *,
    labels: Array | None = None,
    segments: Segmentations | Any = None,
    initial: Array | None = None,
    final: Array | None = None,
    start: Array | None = None,
    end: Array | None = None,
    lengths: Array | None = None,
    weights: Array | None = None,
    tail: Array | None = None,
    ignore: int = IGNORE,
    long_runs: str = "error",
) -> tuple[Array, Gradients]:
    """The loss per row, and the derivatives of sum_b weights[b] * loss[b].

    Args:
        emission, transition, duration, initial, final, start, end, lengths,
            tail: see `log_partition`.
        labels, segments, ignore, long_runs: see `loss`.
        weights: (B,) finite numbers; 1 if absent.

    Returns:
        (B,) float64, and `Gradients`; those of transition, duration, initial and final are sums
        over the rows. A row with an infinite loss adds nothing to them.

    Raises:
        UsageError, DataError: see `loss`.
    """
    options: dict[str, Any] = {"ignore": ignore, "long_runs": long_runs, "tail": tail}
    gold, lengths = gold_of(emission, duration, lengths, labels, segments, **options)
    inputs = (emission, transition, duration, initial, final, start, end)
    call = Call(inputs, lengths)
    value, gradients, by_tail = call.per_row(), call.gradients(), call.like_tail(tail)
    call.loss(gold, value, gradients, call.weights(weights), tail=tail, tail_gradient=by_tail)
    return call.result(value), Gradients(*call.results((*gradients, by_tail)))


def score(
    emission: Array,
    transition: Array,
    duration: Array,
    *,
    labels: Array | None = None,
    segments: Segmentations | Any = None,
    initial: Array | None = None,
    final: Array | None = None,
    start: Array | None = None,
    end: Array | None = None,
    lengths: Array | None = None,
    ignore: int = IGNORE,
    long_runs: str = "error",
) -> Array:
    """The score of one segmentation a row, without the normaliser.

    Args:
        emission, transition, duration, initial, final, start, end, lengths: see `log_partition`.
        labels, segments, ignore, long_runs: see `loss`.

    Returns:
        (B,) float64.

    Raises:
        UsageError, DataError: see `loss`.
    """
    options: dict[str, Any] = {"ignore": ignore, "long_runs": long_runs}
    gold, lengths = gold_of(emission, duration, lengths, labels, segments, **options)
    inputs = (emission, transition, duration, initial, final, start, end)
    call = Call(inputs, lengths, differentiable=True)
    value = call.per_row()
    _native.score(call.problem, gold, value)
    return call.result(value)


def posteriors(
    emission: Array,
    transition: Array,
    duration: Array,
    *,
    initial: Array | None = None,
    final: Array | None = None,
    start: Array | None = None,
    end: Array | None = None,
    lengths: Array | None = None,
    constraints: Constraints | None = None,
    tail: Array | None = None,
) -> Posteriors:
    """Probabilities of labels, boundaries and durations, and the entropy.

    Args:
        emission, transition, duration, initial, final, start, end, lengths,
            constraints, tail: see `log_partition`.

    Returns:
        `Posteriors`. A row without a possible segmentation holds 0. On a GPU `duration` and
        `entropy` are None.

    Raises:
        UsageError, DataError: see `log_partition`.
    """
    inputs = (emission, transition, duration, initial, final, start, end)
    call = Call(inputs, lengths, differentiable=True)
    p = call.problem
    frames = (p.batch, p.frames, p.classes)
    arrays = (
        *(call.empty(frames) for _ in range(3)),
        call.empty((p.batch, p.frames)),
        None if call.on_cuda else call.empty((p.batch, p.max_duration, p.classes)),
        None if call.on_cuda else call.per_row(),
        call.per_row(),
    )
    _native.posteriors(p, native_scope(constraints, tail), *arrays)
    return Posteriors(*call.results(arrays))


def entropy(
    emission: Array,
    transition: Array,
    duration: Array,
    *,
    initial: Array | None = None,
    final: Array | None = None,
    start: Array | None = None,
    end: Array | None = None,
    lengths: Array | None = None,
    constraints: Constraints | None = None,
    tail: Array | None = None,
) -> Array:
    """The entropy of the distribution over segmentations, per row, in nats.

    Args:
        emission, transition, duration, initial, final, start, end, lengths,
            constraints, tail: see `log_partition`.

    Returns:
        (B,) float64; 0 for a row without a possible segmentation.

    Raises:
        UsageError, DataError: see `log_partition`.
    """
    inputs = (emission, transition, duration, initial, final, start, end)
    call = Call(inputs, lengths, differentiable=True)
    value = call.per_row()
    scope = native_scope(constraints, tail)
    _native.posteriors(call.problem, scope, None, None, None, None, None, value, None)
    return call.result(value)


def segment_posteriors(
    emission: Array,
    transition: Array,
    duration: Array,
    *,
    segments: Segmentations | Any,
    initial: Array | None = None,
    final: Array | None = None,
    start: Array | None = None,
    end: Array | None = None,
    lengths: Array | None = None,
) -> Array:
    """P(segment is part of the segmentation), for each listed segment.

    Args:
        emission, transition, duration, initial, final, start, end, lengths: see `log_partition`.
        segments: `Segmentations`, or one list of (start, duration, label) a row; they need not
            tile the rows, and may overlap.

    Returns:
        (n,) float64, in the order of the segments, row by row.

    Raises:
        UsageError, DataError: see `log_partition`; also a segment outside its row, longer than K,
            or with a label outside [0, C).
    """
    packed = native_of(segments)
    inputs = (emission, transition, duration, initial, final, start, end)
    call = Call(inputs, lengths, differentiable=True)
    probability = call.empty((packed.num_segments,), "float64")
    _native.segment_posteriors(call.problem, packed, probability)
    return call.result(probability)


def viterbi(
    emission: Array,
    transition: Array,
    duration: Array,
    *,
    initial: Array | None = None,
    final: Array | None = None,
    start: Array | None = None,
    end: Array | None = None,
    lengths: Array | None = None,
    constraints: Constraints | None = None,
    tail: Array | None = None,
) -> Segmentations:
    """The best segmentation of each row.

    Ties: going from the last segment to the first, the smallest duration, then the smallest label.

    Args:
        emission, transition, duration, initial, final, start, end, lengths,
            constraints, tail: see `log_partition`.

    Returns:
        `Segmentations` with scores; a row without a possible segmentation is empty and has -inf.

    Raises:
        UsageError, DataError: see `log_partition`.
    """
    inputs = (emission, transition, duration, initial, final, start, end)
    call = Call(inputs, lengths)
    value = call.per_row()
    scope = native_scope(constraints, tail)
    if call.on_cuda and scope is None:
        return _viterbi_on_cuda(call, value)
    arrays = _native.viterbi(call.problem, scope, value)
    return from_arrays(arrays, like=emission, score=call.result(value), frames=call.problem.frames)


def _viterbi_on_cuda(call: Call, score: Any) -> Segmentations:
    p = call.problem
    pointer = call.empty((p.batch + 1,), "int64")
    start, duration, label = (call.empty((p.batch * p.frames,), "int32") for _ in range(3))
    _native.viterbi_on_device(p, pointer, start, duration, label, score)
    call.check()
    n = int(pointer[-1])
    return Segmentations(pointer, start[:n], duration[:n], label[:n], score=score, frames=p.frames)


def sample_prior(
    transition: Array,
    duration: Array,
    *,
    initial: Array | None = None,
    rows: int,
    min_frames: int,
    seed: int,
) -> Segmentations:
    """Segmentations drawn from a semi-Markov chain, without any emission.

    label_1 ~ softmax(initial), d_i ~ softmax(duration[:, label_i]),
    label_{i+1} ~ softmax(transition[label_i]): whole segments until a row has `min_frames` frames.
    Row b depends on the scores, `min_frames`, `seed` and b alone.

    Args:
        transition: (C, C) scores [from, to].
        duration: (K, C) scores; row d - 1 is duration d.
        initial: (C,) scores; all labels alike if absent.
        rows: how many to draw.
        min_frames: frames that a row has at least.
        seed: any non-negative integer below 2^64.

    Returns:
        `Segmentations` of that many rows.

    Raises:
        UsageError: shapes that disagree, or a label without a duration or a successor.
    """
    tables = [
        None if table is None else np.asarray(_arrays.readable(name, table), dtype=np.float64)
        for name, table in (("initial", initial), ("transition", transition), ("duration", duration))
    ]
    counts = whole("rows", rows), whole("min_frames", min_frames)
    arrays = _native.sample_prior(tables[0], tables[1], tables[2], *counts, seed_of(seed))
    return from_arrays(arrays, like=transition)


def set_threads(threads: int) -> None:
    """Sets the number of `threads` that calls use, those of compiled functions too.

    0 takes the cores this process may run on.

    Raises:
        UsageError: a negative number.
    """
    _native.set_threads(whole("threads", threads))


def get_threads() -> int:
    """The number of threads that calls use."""
    return _native.get_threads()
