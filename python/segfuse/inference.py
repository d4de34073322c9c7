"""More exact inference: partial labels, alternatives, samples, divergences, decoders of least risk.

All of it runs in the log domain, in double, and is slower than the functions of `segfuse.semicrf` by a
small factor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _arrays, _native
from ._call import SCORES, Call
from ._constraints import Constraints, whole_scope
from ._errors import UsageError
from ._numbers import seed_of, whole
from ._segmentations import IGNORE, Segmentations, from_arrays
from .semicrf import Array, Gradients


@dataclass(frozen=True, slots=True)
class SegmentationLists:
    """Several segmentations of each row; ``lists[b]`` are those of row b, as `Segmentations`.

    Attributes:
        list_pointer: (B + 1,) int64, NumPy; row b has numbers ``list_pointer[b]`` to
            ``list_pointer[b + 1]`` of `segmentations`.
        segmentations: all of them, one after the other, with their scores.
    """

    list_pointer: np.ndarray
    segmentations: Segmentations

    def __len__(self) -> int:
        return len(self.list_pointer) - 1

    def __iter__(self) -> Iterator[Segmentations]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, row: int) -> Segmentations:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        first, last = (int(self.list_pointer[i]) for i in (row, row + 1))
        every = self.segmentations
        pointer = every.row_pointer[first : last + 1]
        part = slice(int(pointer[0]), int(pointer[-1]))
        columns = (every.start[part], every.duration[part], every.label[part])
        score = every.score[first:last]
        return Segmentations(pointer - pointer[0], *columns, score=score, frames=every.frames)


def _lists(call: Call, arrays: tuple[Any, ...], like: Any) -> SegmentationLists:
    pointer, *packed, score = arrays
    frames = call.problem.frames
    score = call.result(score)
    return SegmentationLists(
        pointer, from_arrays(tuple(packed), like=like, score=score, frames=frames)
    )


def partial_loss(
    emission: Array,
    transition: Array,
    duration: Array,
    *,
    constraints: Constraints,
    initial: Array | None = None,
    final: Array | None = None,
    start: Array | None = None,
    end: Array | None = None,
    lengths: Array | None = None,
    tail: Array | None = None,
) -> Array:
    """-log P(the constraints hold) per row: the loss for partial labels.

    With all labels and boundaries of a row known it is -log p(gold).

    Args:
        emission, transition, duration, initial, final, start, end, lengths, tail: see
            `log_partition`.
        constraints: what is known.

    Returns:
        (B,) float64; +inf for a row whose scores do not allow the constraints.

    Raises:
        UsageError, DataError: see `log_partition`; also constraints of a wrong shape.
    """
    inputs = (emission, transition, duration, initial, final, start, end)
    call = Call(inputs, lengths, differentiable=True)
    value = call.per_row()
    scope = whole_scope(constraints, tail)
    _native.partial_loss(call.problem, scope, value, None, None, None)
    return call.result(value)



def partial_loss_and_gradients(
    emission: Array,
    transition: Array,
    duration: Array,
    *,
    constraints: Constraints,
    initial: Array | None = None,
    final: Array | None = None,
    start: Array | None = None,
    end: Array | None = None,
    lengths: Array | None = None,
    tail: Array | None = None,
    weights: Array | None = None,
) -> tuple[Array, Gradients]:
    """The partial loss per row, and the derivatives of sum_b weights[b] * partial_loss[b].

    Args:
        emission, transition, duration, initial, final, start, end, lengths, tail: see
            `log_partition`.
        constraints: what is known.
        weights: (B,) finite numbers; 1 if absent.

    Returns:
        (B,) float64, and `Gradients`: expected counts less expected counts given the constraints.

    Raises:
        UsageError, DataError: see `partial_loss`.
    """
    inputs = (emission, transition, duration, initial, final, start, end)
    call = Call(inputs, lengths)
    value, gradients, by_tail = call.per_row(), call.gradients(), call.like_tail(tail)
    scope = whole_scope(constraints, tail)
    weights = call.weights(weights)
    _native.partial_loss(call.problem, scope, value, gradients, by_tail, weights)
    return call.result(value), Gradients(*call.results((*gradients, by_tail)))



def k_best(
    emission: Array,
    transition: Array,
    duration: Array,
    *,
    n: int,
    initial: Array | None = None,
    final: Array | None = None,
    start: Array | None = None,
    end: Array | None = None,
    lengths: Array | None = None,
    constraints: Constraints | None = None,
    tail: Array | None = None,
) -> SegmentationLists:
    """The n best segmentations of each row with their scores, best first.

    A row with fewer has all it has. Ties as in `viterbi`.

    Args:
        emission, transition, duration, initial, final, start, end, lengths,
            constraints, tail: see `log_partition`.
        n: how many, at least 1.

    Returns:
        `SegmentationLists`: ``result[b][i]`` is the list of segments of the i-th best of row b, and
        ``result[b].score`` has the scores.

    Raises:
        UsageError, DataError: see `log_partition`.
    """
    inputs = (emission, transition, duration, initial, final, start, end)
    call = Call(inputs, lengths)
    arrays = _native.k_best(call.problem, whole_scope(constraints, tail), whole("n", n))
    return _lists(call, arrays, emission)



def sample(
    emission: Array,
    transition: Array,
    duration: Array,
    *,
    n: int,
    seed: int,
    initial: Array | None = None,
    final: Array | None = None,
    start: Array | None = None,
    end: Array | None = None,
    lengths: Array | None = None,
    constraints: Constraints | None = None,
    tail: Array | None = None,
) -> SegmentationLists:
    """n segmentations of each row, drawn exactly from the model, with their scores.

    Draw i of row b depends on the row's scores, the seed, b and i alone.

    Args:
        emission, transition, duration, initial, final, start, end, lengths,
            constraints, tail: see `log_partition`.
        n: how many.
        seed: any non-negative integer below 2^64.

    Returns:
        `SegmentationLists`; rows without a possible segmentation have none.

    Raises:
        UsageError, DataError: see `log_partition`.
    """
    inputs = (emission, transition, duration, initial, final, start, end)
    call = Call(inputs, lengths)
    arrays = _native.sample(call.problem, whole_scope(constraints, tail), whole("n", n, 0), seed_of(seed))
    return _lists(call, arrays, emission)



def boundary_within(
    emission: Array,
    transition: Array,
    duration: Array,
    *,
    tolerance: int,
    initial: Array | None = None,
    final: Array | None = None,
    start: Array | None = None,
    end: Array | None = None,
    lengths: Array | None = None,
    constraints: Constraints | None = None,
    tail: Array | None = None,
) -> Array:
    """P(at least one segment starts within `tolerance` frames of t).

    Starts exclude each other, so this is not the sum of the boundary posteriors of the window.

    Args:
        emission, transition, duration, initial, final, start, end, lengths,
            constraints, tail: see `log_partition`.
        tolerance: frames on either side, 0 or more.

    Returns:
        (B, T) in the dtype of the scores; 0 in padding.

    Raises:
        UsageError, DataError: see `log_partition`.
    """
    inputs = (emission, transition, duration, initial, final, start, end)
    call = Call(inputs, lengths, differentiable=True)
    probability = call.empty((call.problem.batch, call.problem.frames))
    scope = whole_scope(constraints, tail)
    _native.boundary_within(call.problem, scope, whole("tolerance", tolerance), probability)
    return call.result(probability)



def expected_durations(
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
    """The expected number of segments by duration and label, over all rows.

    Args:
        emission, transition, duration, initial, final, start, end, lengths,
            constraints, tail: see `log_partition`.

    Returns:
        (K, C) in the dtype of the scores; with a tail the last row counts K frames and more.

    Raises:
        UsageError, DataError: see `log_partition`.
    """
    inputs = (emission, transition, duration, initial, final, start, end)
    call = Call(inputs, lengths, differentiable=True)
    counts = call.empty((call.problem.max_duration, call.problem.classes))
    _native.expected_durations(call.problem, whole_scope(constraints, tail), counts)
    return call.result(counts)



def max_marginal(
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
    ignore: int = IGNORE,
) -> Array:
    """The most probable label of each frame by itself: the fewest expected wrong frames.

    The labels need not be those of a possible segmentation. Ties: the smallest label.

    Args:
        emission, transition, duration, initial, final, start, end, lengths,
            constraints, tail: see `log_partition`.
        ignore: what padding, and rows without a possible segmentation, get.

    Returns:
        (B, T) int32.

    Raises:
        UsageError, DataError: see `log_partition`.
    """
    inputs = (emission, transition, duration, initial, final, start, end)
    call = Call(inputs, lengths)
    labels = call.empty((call.problem.batch, call.problem.frames), "int32")
    _native.max_marginal(call.problem, whole_scope(constraints, tail), labels, whole("ignore", ignore))
    return call.result(labels)



def minimum_risk(
    emission: Array,
    transition: Array,
    duration: Array,
    *,
    tolerance: int,
    initial: Array | None = None,
    final: Array | None = None,
    start: Array | None = None,
    end: Array | None = None,
    lengths: Array | None = None,
    constraints: Constraints | None = None,
    tail: Array | None = None,
) -> tuple[Segmentations, Array]:
    """The possible segmentation with the best expected boundary F1.

    2 E[found] / (segments + E[segments of the truth]), found being the starts of the truth with a
    start within `tolerance` frames; then, given its boundaries, the labels with the fewest expected
    wrong frames.

    Args:
        emission, transition, duration, initial, final, start, end, lengths,
            constraints, tail: see `log_partition`.
        tolerance: frames on either side, 0 or more.

    Returns:
        `Segmentations`, and their F1, (B,) float64. A row without a possible segmentation is empty
        and has 0.

    Raises:
        UsageError, DataError: see `log_partition`.
    """
    inputs = (emission, transition, duration, initial, final, start, end)
    call = Call(inputs, lengths)
    f1 = call.per_row()
    scope = whole_scope(constraints, tail)
    arrays = _native.minimum_risk(call.problem, scope, whole("tolerance", tolerance), f1)
    return from_arrays(arrays, like=emission, frames=call.problem.frames), call.result(f1)



def _compare(native: Any, p: Mapping[str, Array], q: Mapping[str, Array], lengths: Any) -> Array:
    calls = []
    for name, model in (("p", p), ("q", q)):
        unknown = set(model) - set(SCORES)
        if unknown:
            raise UsageError(f"{name} has {sorted(unknown)}, expected some of {list(SCORES)}")
        inputs = tuple(model.get(score) for score in SCORES)
        calls.append(Call(inputs, lengths, differentiable=True))
    value = calls[0].per_row()
    native(calls[0].problem, calls[1].problem, value)
    return calls[0].result(value)


def cross_entropy(
    p: Mapping[str, Array], q: Mapping[str, Array], *, lengths: Array | None = None
) -> Array:
    """-E_p[log q(segmentation)] per row, in nats, of two models over the same rows.

    Args:
        p, q: the scores of `log_partition` by name, such as
            ``{"emission": e, "transition": t, "duration": d}``; shapes of emission, transition and
            duration agree.
        lengths: (B,), see `log_partition`.

    Returns:
        (B,) float64; +inf where p allows what q forbids.

    Raises:
        UsageError, DataError: see `log_partition`; also a name that is no score.
    """
    return _compare(_native.cross_entropy, p, q, lengths)


def kl(p: Mapping[str, Array], q: Mapping[str, Array], *, lengths: Array | None = None) -> Array:
    """The divergence E_p[log p - log q] per row, in nats, never negative.

    Args:
        p, q, lengths: see `cross_entropy`.

    Returns:
        (B,) float64; +inf where p allows what q forbids.

    Raises:
        UsageError, DataError: see `cross_entropy`.
    """
    return _compare(_native.kl, p, q, lengths)


def _duration_model(
    family: str, max_duration: int, buckets: int, normalise: bool
) -> _native.DurationModel:
    families = [member.name for member in _native.DurationFamily]
    if family not in families:
        raise UsageError(f"family is {family!r}, expected one of {', '.join(families)}")
    return _native.DurationModel(
        _native.DurationFamily[family],
        whole("max_duration", max_duration),
        whole("buckets", buckets),
        bool(normalise),
    )


def duration_parameters(family: str, max_duration: int, *, buckets: int = 8) -> int:
    """The number of parameters per label, P.

    Args:
        family, max_duration, buckets: as in `duration_scores`.
    """
    model = _duration_model(family, max_duration, buckets, True)
    return _native.duration_layout(model)[0]


def duration_buckets(max_duration: int, *, buckets: int = 8) -> np.ndarray:
    """The first duration of each range of the family "buckets", as NumPy int64.

    Args:
        max_duration: K.
        buckets: at most so many ranges.
    """
    return _native.duration_layout(_duration_model("buckets", max_duration, buckets, True))[1]


def duration_scores(
    family: str,
    parameters: Array,
    max_duration: int,
    *,
    buckets: int = 8,
    normalise: bool = True,
) -> Array:
    """Duration scores (K, C) from a few parameters per label.

    Every real number is a legal parameter. With x = d - 1:

    - ``"table"``: K scores, as they are
    - ``"geometric"``: logit q; (1 - q) q^x
    - ``"negative_binomial"``: log r, logit q; of x
    - ``"poisson"``: log rate; of x
    - ``"log_normal"``: mu, log sigma; the density at d
    - ``"buckets"``: one score for each range of durations, evenly wide in log d

    Args:
        family: one of these.
        parameters: (P, C), P being `duration_parameters`.
        max_duration: K.
        buckets: at most so many, for ``"buckets"``.
        normalise: whether exp(scores) of a label sum to 1 over 1..K.

    Returns:
        (K, C) float64.

    Raises:
        UsageError: an unknown family, or a wrong shape.
        DataError: a parameter that is not finite.
    """
    model = _duration_model(family, max_duration, buckets, normalise)
    values = _parameters(parameters)
    scores = np.empty((max(max_duration, 0), values.shape[-1]))
    _native.duration_scores(model, values, scores)
    return _arrays.kind_of(parameters).result(scores)


def duration_gradient(
    family: str,
    parameters: Array,
    score_gradient: Array,
    *,
    buckets: int = 8,
    normalise: bool = True,
) -> Array:
    """The chain rule of `duration_scores`.

    Args:
        family, parameters, buckets, normalise: as they were there.
        score_gradient: (K, C), derivatives by the scores.

    Returns:
        (P, C) float64, derivatives by the parameters.

    Raises:
        UsageError, DataError: see `duration_scores`.
    """
    gradient = _parameters(score_gradient)
    model = _duration_model(family, gradient.shape[0], buckets, normalise)
    values = _parameters(parameters)
    result = np.empty_like(values)
    _native.duration_gradient(model, values, gradient, result)
    return _arrays.kind_of(parameters).result(result)


def _parameters(values: Array) -> np.ndarray:
    array = np.asarray(_arrays.readable("parameters", values), dtype=np.float64)
    if array.ndim != 2:
        raise UsageError(f"parameters and gradients have two axes, not the shape {array.shape}")
    return array
