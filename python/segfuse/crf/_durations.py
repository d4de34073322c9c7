"""Durations: families with few parameters, and segmentations drawn without emissions."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _arrays, _native
from .._errors import UsageError
from .._numbers import seed_of, whole
from ._segmentations import Segmentations, from_arrays

Array = Any
"""A NumPy array, a JAX array or a PyTorch tensor."""


def sample_prior(
    transition: Array,
    duration: Array,
    *,
    initial: Array | None = None,
    rows: int,
    min_frames: int,
    seed: int,
) -> Segmentations:
    """Draws segmentations from a semi-Markov chain, without emissions.

    label_1 ~ softmax(initial), d_i ~ softmax(duration[:, label_i]),
    label_{i+1} ~ softmax(transition[label_i]). Whole segments are drawn until a row has at least
    `min_frames` frames. Row b depends only on the scores, `min_frames`, `seed` and b.

    Args:
        transition: (C, C) scores [from, to].
        duration: (K, C) scores; row d - 1 is duration d.
        initial: (C,) scores; without it, all labels are equally probable.
        rows: the number of rows to draw.
        min_frames: the least number of frames of a row.
        seed: any non-negative integer below 2^64.

    Returns:
        `Segmentations` of `rows` rows.

    Raises:
        UsageError: shapes disagree, or a label has no possible duration or successor.
    """
    tables = [
        None if table is None else np.asarray(_arrays.readable(name, table), dtype=np.float64)
        for name, table in (
            ("initial", initial),
            ("transition", transition),
            ("duration", duration),
        )
    ]
    counts = whole("rows", rows), whole("min_frames", min_frames)
    arrays = _native.sample_prior(tables[0], tables[1], tables[2], *counts, seed_of(seed))
    return from_arrays(arrays, like=transition)


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
        buckets: the largest number of ranges.
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
    """Computes duration scores (K, C) from a few parameters per label.

    Parameters may be any real numbers. The families, their parameters, and the distributions of the
    duration d (x is d - 1):

    - ``"table"``: K scores, which are used as they are
    - ``"geometric"``: logit q; P(x) is proportional to q^x
    - ``"negative_binomial"``: log r, logit q; x is negative binomial
    - ``"poisson"``: log rate; x is Poisson
    - ``"log_normal"``: mu, log sigma; the log-normal density at d
    - ``"buckets"``: a score for each range of durations; the ranges are equally wide in log d

    Args:
        family: one of these names.
        parameters: (P, C), where P is `duration_parameters`.
        max_duration: K.
        buckets: the largest number of ranges, for ``"buckets"``.
        normalise: whether exp(scores) of each label sum to 1 over durations 1 to K.

    Returns:
        (K, C) float64.

    Raises:
        UsageError: the family is unknown, or a shape is wrong.
        DataError: a parameter is not finite.
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
    """Applies the chain rule to `duration_scores`.

    Args:
        family, parameters, buckets, normalise: the arguments of `duration_scores`.
        score_gradient: (K, C), the derivatives by the scores.

    Returns:
        (P, C) float64, the derivatives by the parameters.

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
