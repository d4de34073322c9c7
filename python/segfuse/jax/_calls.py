"""Custom calls: what goes in, what comes out, and how they are differentiated."""

from __future__ import annotations

import functools
from dataclasses import fields
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import numpy as np
from jax import numpy as jnp

from .. import _native
from .._arrays import made_alike, results_like
from .._errors import UsageError
from .._numbers import need_plain, whole
from ..crf import IGNORE, Gradients, Posteriors
from ..crf._call import SCORES
from ..crf._segmentations import split_of

Array: TypeAlias = jax.Array
Reduction: TypeAlias = Literal["mean", "sum", "none"]
_Scores: TypeAlias = tuple[Any, ...]
"""An array or None for each of `_NAMES`; the first three are arrays."""

_NAMES = (*SCORES, "tail")
_SLOTS = (*_NAMES, "lengths", "labels", "weights", *(f"along_{name}" for name in _NAMES))
"""What a call may be given; the bits of its attribute `given` are in this order, which the handlers
know, too."""
_PER_ROW = ("emission", "start", "end")
_AXES = {"emission": 3, "duration": 2, "initial": 1, "final": 1, "start": 3, "end": 3, "tail": 1}

for _name, _handler in _native.xla_handlers().items():
    jax.ffi.register_ffi_target(_name, _handler, platform="cpu")
for _name, _handler in _native.xla_device_handlers().items():
    jax.ffi.register_ffi_target(_name, _handler, platform="CUDA")
for _class in (Posteriors, Gradients):
    jax.tree_util.register_dataclass(_class, [f.name for f in fields(_class)], [])


class Decoded(NamedTuple):
    """The best segmentation of each row, in arrays of fixed shapes.

    Attributes:
        score: (B,), the score of the segmentation; -inf for a row without a possible one.
        count: (B,) int32, the number of its segments.
        start, duration, label: (B, T) int32; entries from index `count` on are 0, 0 and `IGNORE`.
        labels: (B, T) int32, the label of each frame; `IGNORE` after the end of the row.
    """

    score: Array
    count: Array
    start: Array
    duration: Array
    label: Array
    labels: Array


class _Static(NamedTuple):
    """What a call is compiled for."""

    ignore: int = IGNORE
    split: bool = False


def _double() -> Any:
    """float64 where JAX is set to keep it, else float32."""
    return jax.dtypes.canonicalize_dtype(np.float64)


def _call(
    target: str, results: Any, static: _Static, scores: _Scores, more: dict[str, Array | None]
) -> Any:
    given: dict[str, Any] = dict(zip(_NAMES, scores, strict=True)) | more
    operands = [(i, given[name]) for i, name in enumerate(_SLOTS) if given.get(name) is not None]
    numbers = {
        "given": sum(1 << i for i, _ in operands),
        "transition_axes": given["transition"].ndim,
        "ignore": static.ignore,
        "split": static.split,
    }
    call = jax.ffi.ffi_call(target, results, vmap_method="expand_dims")
    found = call(*(x for _, x in operands), **{k: np.int64(v) for k, v in numbers.items()})
    whole = results_like(scores[0], jax.tree.leaves(found))
    return whole if isinstance(found, (list, tuple)) else whole[0]


def _like(scores: _Scores) -> list[Any]:
    return [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in scores if x is not None]


def _rows(scores: _Scores) -> Any:
    return jax.ShapeDtypeStruct(scores[0].shape[:1], _double())


def _in_places(scores: _Scores, values: Any) -> _Scores:
    """The values one by one where a score is given, else None."""
    left = iter(values)
    return tuple(None if x is None else next(left) for x in scores)


# The loss of each row with labels, the log-partition without. `integers` are lengths and labels.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _value(static: _Static, scores: _Scores, integers: Any) -> Array:
    return _call("segfuse_crf_value", _rows(scores), static, scores, _named(integers))


def _value_forward(static: _Static, scores: _Scores, integers: Any) -> tuple[Array, Any]:
    return _value(static, scores, integers), (scores, integers)


def _value_backward(static: _Static, kept: Any, grad: Array) -> tuple[Any, None]:
    scores, integers = kept
    return _gradients(static, scores, integers, grad), None


_value.defvjp(_value_forward, _value_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gradients(static: _Static, scores: _Scores, integers: Any, weights: Array) -> _Scores:
    """Those of the weighted sum of the values; NaN where a weight that is not finite reaches."""

    def on_host(scores: _Scores, integers: Any, weights: Array) -> _Scores:
        more = _named(integers) | {"weights": weights}
        gradients = _call("segfuse_crf_gradients", _like(scores), static, scores, more)
        return _in_places(scores, gradients)

    def on_device(scores: _Scores, integers: Any, weights: Array) -> _Scores:
        finite = jnp.isfinite(weights)
        gradients = on_host(scores, integers, jnp.where(finite, weights, 0))
        by_row, all_rows = finite[:, None, None], finite.all()
        return tuple(
            None if x is None else _or_nan(by_row if name in _PER_ROW else all_rows, x)
            for name, x in zip(_NAMES, gradients, strict=True)
        )

    return jax.lax.platform_dependent(scores, integers, weights, cpu=on_host, default=on_device)


def _or_nan(keep: Array, x: Array) -> Array:
    """NaN where `keep` is false. jnp.where would narrow x where JAX is set to."""
    return jax.lax.select(jnp.broadcast_to(keep, x.shape), x, jax.lax.full_like(x, jnp.nan))


def _gradients_forward(
    static: _Static, scores: _Scores, integers: Any, weights: Array
) -> tuple[_Scores, Any]:
    return _gradients(static, scores, integers, weights), (scores, integers, weights)


def _gradients_backward(static: _Static, kept: Any, grads: _Scores) -> tuple[Any, None, Array]:
    scores, integers, weights = kept
    along = {f"along_{name}": x for name, x in zip(_NAMES, grads, strict=True)}
    more = _named(integers) | {"weights": weights} | along
    results = [_rows(scores), *_like(scores)]
    derivative, *product = _call("segfuse_crf_along", results, static, scores, more)
    return _in_places(scores, product), None, derivative.astype(weights.dtype)


_gradients.defvjp(_gradients_forward, _gradients_backward)


# The weighted sum of the values, with its gradients from the same call.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _weighted(
    static: _Static, scores: _Scores, integers: Any, weights: Array
) -> tuple[Array, _Scores]:
    """The values, and the gradients of their weighted sum; the weights are finite."""
    results, more = [_rows(scores), *_like(scores)], _named(integers) | {"weights": weights}
    value, *gradients = _call("segfuse_crf_weighted", results, static, scores, more)
    return value, _in_places(scores, gradients)


def _weighted_forward(
    static: _Static, scores: _Scores, integers: Any, weights: Array
) -> tuple[tuple[Array, _Scores], Any]:
    return _weighted(static, scores, integers, weights), (scores, integers, weights)


def _weighted_backward(static: _Static, kept: Any, grads: Any) -> tuple[Any, None, Array]:
    scores, integers, _ = kept
    by_value = _gradients(static, scores, integers, grads[0])
    by_gradients, _, by_weights = _gradients_backward(static, kept, grads[1])
    both = zip(by_value, by_gradients, strict=True)
    return tuple(None if x is None else x + y for x, y in both), None, by_weights


_weighted.defvjp(_weighted_forward, _weighted_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _sum(static: _Static, weight: float, scores: _Scores, integers: Any) -> Array:
    return (_value(static, scores, integers) * weight).sum()


def _sum_forward(
    static: _Static, weight: float, scores: _Scores, integers: Any
) -> tuple[Array, Any]:
    weights = jnp.full(scores[0].shape[:1], weight, _double())
    value, gradients = _weighted(static, scores, integers, *made_alike([scores[0], weights])[1:])
    return (value * weight).sum(), gradients


def _sum_backward(static: _Static, weight: float, gradients: Any, grad: Array) -> tuple[Any, None]:
    return tuple(None if x is None else x * grad.astype(x.dtype) for x in gradients), None


_sum.defvjp(_sum_forward, _sum_backward)


def _reduced(reduction: str, static: _Static, scores: _Scores, integers: Any) -> Array:
    if reduction == "none":
        return _value(static, scores, integers)
    if reduction not in ("mean", "sum"):
        raise UsageError(f'reduction is {reduction!r}, expected "mean", "sum" or "none"')
    rows = scores[0].shape[0]
    return _sum(static, 1 / rows if reduction == "mean" and rows > 0 else 1.0, scores, integers)


def _named(integers: Any) -> dict[str, Array | None]:
    return dict(zip(("lengths", "labels"), integers, strict=True))


def _score(name: str, values: Any) -> Array | None:
    if values is None:
        return None
    need_plain(name, values)
    array = jnp.asarray(values)
    if array.dtype in (jnp.float16, jnp.bfloat16):
        array = array.astype(jnp.float32)
    if array.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise UsageError(f"{name} is {array.dtype}, expected float32 or float64")
    axes = (2, 3) if name == "transition" else (_AXES[name],)
    if array.ndim not in axes:
        raise UsageError(
            f"{name} has shape {array.shape}, expected {' or '.join(map(str, axes))} axes"
        )
    return array


def _scores_of(emission: Any, transition: Any, duration: Any, optional: dict[str, Any]) -> _Scores:
    """All scores, of one dtype."""
    given = {"emission": emission, "transition": transition, "duration": duration} | optional
    for name in ("emission", "transition", "duration"):
        if given[name] is None:
            raise UsageError(f"{name} is None, expected an array")
    scores: _Scores = tuple(_score(name, given[name]) for name in _NAMES)
    for name, x in zip(_NAMES, scores, strict=True):
        if x is not None and x.dtype != scores[0].dtype:
            raise UsageError(
                f"{name} is {x.dtype}, but emission is {scores[0].dtype}; all scores need the same "
                "dtype"
            )
    return scores


def _integers(name: str, values: Any, shape: tuple[int, ...]) -> Array | None:
    if values is None:
        return None
    need_plain(name, values)
    array = jnp.asarray(values)
    if array.dtype not in (np.dtype(np.int32), np.dtype(np.int64)):
        raise UsageError(f"{name} is {array.dtype}, expected int32 or int64")
    if array.shape != shape:
        raise UsageError(f"{name} has shape {array.shape}, expected {shape}")
    return array


def _alike(
    scores: _Scores, lengths: Any, labels: Any = None
) -> tuple[_Scores, Array | None, Array | None]:
    """The inputs of a call, checked."""
    frames = scores[0].shape[:2]
    integers = _integers("lengths", lengths, frames[:1]), _integers("labels", labels, frames)
    *made, by_row, by_frame = made_alike([*scores, *integers])
    return tuple(made), by_row, by_frame


def log_partition(
    emission: Any,
    transition: Any,
    duration: Any,
    *,
    initial: Any = None,
    final: Any = None,
    start: Any = None,
    end: Any = None,
    tail: Any = None,
    lengths: Any = None,
    reduction: Reduction = "none",
) -> Array:
    """The log of the sum of exp(score) over all segmentations; see `segfuse.log_partition`.

    Half precision is converted to float32.

    Args:
        reduction: ``"none"``, or ``"sum"`` or ``"mean"`` over the rows, which compute the gradients
            along with the value: faster than a sum of the rows' values.

    Returns:
        (B,) or a scalar, float64 where JAX is set to keep it, else float32.

    Raises:
        UsageError: while JAX traces, for dtypes and numbers of axes.
        jax.errors.JaxRuntimeError: at run time, with the sentence of `segfuse.UsageError` (shapes)
            or `segfuse.DataError` (a NaN, with its place).
    """
    optional = {"initial": initial, "final": final, "start": start, "end": end, "tail": tail}
    scores = _scores_of(emission, transition, duration, optional)
    scores, lengths, _ = _alike(scores, lengths)
    return _reduced(reduction, _Static(), scores, (lengths, None))


def loss(
    emission: Any,
    transition: Any,
    duration: Any,
    labels: Any,
    *,
    initial: Any = None,
    final: Any = None,
    start: Any = None,
    end: Any = None,
    tail: Any = None,
    lengths: Any = None,
    ignore: int = IGNORE,
    long_runs: str = "error",
    reduction: Reduction = "none",
) -> Array:
    """-log p(gold segmentation) of each row; see `segfuse.loss`.

    Args:
        labels: (B, T) int32 or int64. Without `lengths`, a row ends at its first `ignore`.
        ignore, long_runs: as in `segfuse.loss`; static.
        reduction: as in `log_partition`.

    Returns:
        (B,) or a scalar; dtype and errors as of `log_partition`.
    """
    optional = {"initial": initial, "final": final, "start": start, "end": end, "tail": tail}
    scores = _scores_of(emission, transition, duration, optional)
    if labels is None:
        raise UsageError("labels is None, expected (B, T) integers")
    scores, lengths, gold = _alike(scores, lengths, labels)
    static = _Static(whole("ignore", ignore), split_of(long_runs))
    return _reduced(reduction, static, scores, (lengths, gold))


def posteriors(
    emission: Any,
    transition: Any,
    duration: Any,
    *,
    initial: Any = None,
    final: Any = None,
    start: Any = None,
    end: Any = None,
    tail: Any = None,
    lengths: Any = None,
) -> Posteriors:
    """Probabilities under the model, as `segfuse.posteriors`. A pytree; it has no derivative."""
    optional = {"initial": initial, "final": final, "start": start, "end": end, "tail": tail}
    scores = _scores_of(emission, transition, duration, optional)
    scores, lengths, _ = _alike(scores, lengths)
    (batch, frames, classes), dtype = scores[0].shape, scores[0].dtype
    by_frame = jax.ShapeDtypeStruct((batch, frames, classes), dtype)
    boundary = jax.ShapeDtypeStruct((batch, frames), dtype)
    by_duration = jax.ShapeDtypeStruct((batch, scores[2].shape[0], classes), dtype)
    results = [*[by_frame] * 3, boundary, by_duration, _rows(scores), _rows(scores)]
    return Posteriors(
        *_call("segfuse_crf_posteriors", results, _Static(), scores, {"lengths": lengths})
    )


def viterbi(
    emission: Any,
    transition: Any,
    duration: Any,
    *,
    initial: Any = None,
    final: Any = None,
    start: Any = None,
    end: Any = None,
    tail: Any = None,
    lengths: Any = None,
) -> Decoded:
    """The best segmentation of each row, that of `segfuse.viterbi`. It has no derivative."""
    optional = {"initial": initial, "final": final, "start": start, "end": end, "tail": tail}
    scores = _scores_of(emission, transition, duration, optional)
    scores, lengths, _ = _alike(scores, lengths)
    return jax.lax.platform_dependent(scores, lengths, cpu=_viterbi, default=_viterbi_packed)


def _viterbi(scores: _Scores, lengths: Array | None) -> Decoded:
    per_row = jax.ShapeDtypeStruct(scores[0].shape[:1], np.int32)
    per_frame = jax.ShapeDtypeStruct(scores[0].shape[:2], np.int32)
    results = [_rows(scores), per_row, *[per_frame] * 4]
    more = {"lengths": lengths}
    return Decoded(*_call("segfuse_crf_viterbi", results, _Static(), scores, more))


def _viterbi_packed(scores: _Scores, lengths: Array | None) -> Decoded:
    """From the segments of all rows one after the other, as a GPU has them."""
    batch, frames, _ = scores[0].shape
    halves = jax.ShapeDtypeStruct((batch + 1, 2), np.int32)
    column = jax.ShapeDtypeStruct((batch * frames,), np.int32)
    results = [_rows(scores), halves, *[column] * 3]
    more = {"lengths": lengths}
    score, pointer, *columns = _call("segfuse_crf_viterbi_packed", results, _Static(), scores, more)
    first, count = pointer[:-1, :1], jnp.diff(pointer[:, 0])  # the lower halves; there are no more
    place = jnp.arange(frames)
    inside = place < count[:, None]
    start, duration, label = (
        jnp.where(inside, column.at[first + place].get(mode="fill", fill_value=0), none)
        for column, none in zip(columns, (0, 0, IGNORE), strict=True)
    )
    # The segment of a frame, by how many begin up to there.
    rows = jnp.arange(batch)[:, None]
    begins = jnp.zeros((batch, frames), np.int32).at[rows, start].add(inside.astype(np.int32))
    of_frame = jnp.take_along_axis(label, jnp.maximum(jnp.cumsum(begins, 1) - 1, 0), axis=1)
    labels = jnp.where(place < duration.sum(1)[:, None], of_frame, IGNORE)
    return Decoded(score, count, start, duration, label, labels)
